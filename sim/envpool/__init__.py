"""EnvPool: MetaWorld, Fetch, MuJoCo Playground and the DeepMind control suite, simulated in C++.

Two modes. *Exact* (`vec_env`): every episode is what its `EpisodeSpec` says, whatever env it runs in. *Throughput*
(`throughput`): one asynchronous pool whose episodes are (seed, env id, k-th episode of that env).
"""
