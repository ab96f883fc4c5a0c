.PHONY: test nvcc check-sass gpu-bundle ci

test:
	cargo test

# nvcc into .nvcc/, from PyPI
nvcc:
	scripts/install-nvcc.sh

# registers and machine code of the kernels, every architecture
check-sass:
	scripts/check-sass.sh

# executables and a runner for machines with GPUs and no Rust
gpu-bundle:
	scripts/gpu-bundle.sh

ci:
	.ci/run
