#!/bin/bash
# Runs the tests of pipeplan.torch with one version of PyTorch, in an environment of its own that is removed afterwards.
#
#     python/tests/torch_version.sh 2.8.0 [FLAGS OF PYTEST]
#
# The package is the wheel in python/dist (./dev python), or what PYTHONPATH names. Takes some 6 GB of disk while it runs.
set -euo pipefail
version=$1
shift
top=$(cd "$(dirname "$0")/../.." && pwd)
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
"${PYTHON:-python3}" -m venv "$place"
wheel=
[ -n "${PYTHONPATH-}" ] || wheel=$(ls "$top"/python/dist/pipeplan-*.whl)
"$place/bin/pip" install --quiet --no-cache-dir --disable-pip-version-check "torch==$version" numpy transformers pytest $wheel
"$place/bin/python" -m pytest -q -rs -p no:cacheprovider "$top/python/tests/test_torch.py" "$@"
"$place/bin/python" -m pytest -q -rs -p no:cacheprovider "$top/python/tests/test_examples.py" -k "trains or transformers"
