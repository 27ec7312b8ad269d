// The fine-tuning methods that a base allows on this machine, by its parameter count.

import { execFileSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import type { Method } from '../../contract/common.ts'
import { usableMemory } from '../../lib/usable-memory.ts'

/**
 * Minimum bytes of memory per weight in training: frozen in bf16, frozen in 4 bits, or in float32 with its gradient and
 * two moments. A run needs more (trainer/run/memory.py predicts it): a method that is left out can never fit, and a
 * listed one may need a smaller batch.
 */
const min_bytes_per_weight = { lora: 2, qlora: 0.55, full: 16 } as const satisfies Record<Method, number>

/** The methods that a text model of this size allows in `memory_bytes`. */
export const methodsFor = (parameters: number, memory_bytes: number): Method[] =>
  (['lora', 'qlora', 'full'] as const).filter((method) => parameters * min_bytes_per_weight[method] <= memory_bytes)

/** Memory for training in bytes: of the smallest GPU if there are any, else of the machine or its control group. */
export function trainingMemoryBytes(): number {
  return gpuBytes() ?? usableMemory()
}

/** Undefined without an NVIDIA GPU, or if its driver does not answer. */
function gpuBytes(): number | undefined {
  if (!existsSync('/dev/nvidia0')) return undefined
  try {
    const args = ['--query-gpu=memory.total', '--format=csv,noheader,nounits']
    const sizes = execFileSync('nvidia-smi', args, {
      encoding: 'utf8',
      timeout: 10_000,
      stdio: ['ignore', 'pipe', 'ignore'],
    })
    const found = sizes.trim().split('\n').map(Number)
    return found.every((mebibytes) => mebibytes > 0) ? Math.min(...found) * 2 ** 20 : undefined
  } catch {
    return undefined
  }
}
