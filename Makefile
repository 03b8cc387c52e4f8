# make demo    adapt an INT8 ResNet18 to a shifted domain on the native board, with figures
# make test    all tests
# make bench-m55 [MODELS="a.tflite b.tflite"]    instructions of a forward pass on an emulated Cortex-M55
# make firmware [BOARD=qemu_an547|stm32n6 [VARIANT=nucleo|dk] [NPU=dir ST_NPU=dir]] [KERNELS=words|mve|portable] [IMAGE=a.zimg]    build a board's firmware: its memory and worst-case stack
# All set up .venv first if that is needed; everything is reused the second time.

PYTHONS := python3.11 python3.10 python3
PY := .venv/bin/python
DEMO := runs/demo
MODELS :=
BOARD := qemu_an547
KERNELS = $(if $(filter stm32n6,$(BOARD)),mve,words)
VARIANT :=
IMAGE :=
NPU :=
ST_NPU :=
ST_NPU_LIBRARY :=

.PHONY: help setup demo test bench-m55 firmware lint format clean

help:
	@sed -n '1,5s/^# //p' Makefile

setup: .venv/installed

.venv/installed: pyproject.toml
	@python=; for p in $(PYTHON) $(PYTHONS); do \
	  if $$p -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 12))' 2>/dev/null; then python=$$p; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "error: Python 3.10 or 3.11 is needed (tflite-runtime, the bit-exact oracle, has no wheels for newer ones):" \
	    "install python3.11 and run make again, or name it: make PYTHON=/path/to/python3.11." >&2; exit 1; fi; \
	if ! $$python -c 'import ensurepip' 2>/dev/null; then \
	  echo "error: this Python lacks its venv module: apt-get install python3-venv." >&2; exit 1; fi; \
	if ! command -v cc >/dev/null; then \
	  echo "error: a C compiler is missing: apt-get install gcc libc6-dev." >&2; exit 1; fi; \
	start=$$(date +%s); echo "Installing into .venv (2.6 GB, some minutes the first time) ..."; \
	$$python -m venv .venv && $(PY) -m pip install --upgrade pip > .venv/install.log 2>&1 \
	  && $(PY) -m pip install -e '.[test]' >> .venv/install.log 2>&1 || { tail -n 5 .venv/install.log >&2; \
	  echo "error: the installation failed; .venv/install.log has pip's words. Mend the cause and run make again." >&2; exit 1; }; \
	touch $@; echo "Installed in $$(( $$(date +%s) - start )) s."

demo: setup
	@start=$$(date +%s); \
	$(PY) -m pipeline.convert --model resnet18 --width 16 --input-size 32 --stem small --dataset fashion_mnist --name demo \
	&& if [ -f $(DEMO)/summary.json ]; then echo "$(DEMO) is complete: reused."; \
	   elif [ -f $(DEMO)/config.json ]; then $(PY) -m pipeline.train_ondevice --resume $(DEMO); \
	   else $(PY) -m pipeline.train_ondevice --board native --image artifacts/demo/demo.zimg \
	     --shift brightness --budget 100000 --eval-images 10000 --run demo; fi \
	&& $(PY) -m pipeline.report $(DEMO) \
	&& echo "Demo done in $$(( $$(date +%s) - start )) s: open $(DEMO)/report/report.html."

test: setup
	$(PY) -m pytest

bench-m55: setup
	@$(PY) -m pipeline.bench_m55 $(MODELS)

firmware: setup
	@$(PY) -m pipeline.firmware --board $(BOARD) $(if $(VARIANT),--variant $(VARIANT)) --kernels $(KERNELS) $(if $(IMAGE),--image $(IMAGE)) \
	  $(if $(NPU),--npu $(NPU)) $(if $(ST_NPU),--st-npu $(ST_NPU)) $(if $(ST_NPU_LIBRARY),--st-npu-library $(ST_NPU_LIBRARY))

lint: setup
	.venv/bin/ruff format --check
	.venv/bin/ruff check
	.venv/bin/clang-format --dry-run -Werror $$(git ls-files '*.c' '*.cc' '*.h')

format: setup
	.venv/bin/ruff format
	.venv/bin/ruff check --fix
	.venv/bin/clang-format -i $$(git ls-files '*.c' '*.cc' '*.h')

clean:
	rm -rf .venv build artifacts runs sweeps
