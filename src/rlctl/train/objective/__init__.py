"""What is optimised, pure: rewards to advantages per token, and losses over tokens as sums."""
