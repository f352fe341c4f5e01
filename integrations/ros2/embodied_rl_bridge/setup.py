"""Built by colcon, as an ament_python package."""

from glob import glob

from setuptools import setup

NAME = "embodied_rl_bridge"

setup(
    name=NAME,
    version="0.1.0",
    description="Launches embodied-rl's bridge between a policy server and an arm, and its simulated twin.",
    license="Apache-2.0",
    maintainer="The embodied-rl authors",
    maintainer_email="maintainers@embodied-rl.invalid",
    packages=[NAME],
    data_files=[
        ("share/ament_index/resource_index/packages", [f"resource/{NAME}"]),
        (f"share/{NAME}", ["package.xml"]),
        *((f"share/{NAME}/{folder}", sorted(glob(f"{folder}/*.*"))) for folder in ("launch", "config", "rviz")),
    ],
    install_requires=["embodied-rl"],
    zip_safe=True,
    entry_points={
        "console_scripts": ["bridge = embodied_rl_bridge.nodes:bridge", "twin = embodied_rl_bridge.nodes:twin"]
    },
)
