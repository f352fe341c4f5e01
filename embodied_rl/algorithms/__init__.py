"""PPO and GRPO: advantages and losses as pure functions, one readable file each."""
