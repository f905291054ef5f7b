.PHONY: install check test demo
