#!/bin/bash
PP=${PP:-4}; LAYERS=$((PP * 8))
declare -a ARGS=(--num-layers "$LAYERS" --hidden-size 4096)
if [[ $PP -gt 1 ]]; then ARGS+=(--pipeline-model-parallel-size $PP); fi
for x in a b; do echo "$x"; done
cat <<END
--seq-length 1
END
torchrun --nproc_per_node 8 pretrain_gpt.py "${ARGS[@]}" --num-attention-heads 32 --seq-length 4096 \
  --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 --swiglu --vocab-size 32000 --bf16
