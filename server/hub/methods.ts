// Which fine-tuning methods a base allows on this machine, told from its size before its weights are here.
import { execFileSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import os from 'node:os'
import type { Method } from '../../contract/common.ts'

/**
 * Bytes of memory that a weight takes at the least while it is trained: frozen in bf16, frozen in 4 bits, or in float32 with its gradient and
 * two moments. A run takes more (trainer/memory.py predicts it), so a method that is left out can never fit; one that is listed may need a
 * smaller batch.
 */
const least_bytes = { lora: 2, qlora: 0.55, full: 16 } as const satisfies Record<Method, number>

/** The methods that a base which writes text can be trained with in this many bytes of memory. */
export const methodsFor = (parameters: number, memory_bytes: number): Method[] =>
  (['lora', 'qlora', 'full'] as const).filter((method) => parameters * least_bytes[method] <= memory_bytes)

/** The memory that training has here, in bytes: of the smallest GPU where there are any, else of the machine or of its control group. */
export function trainingMemoryBytes(): number {
  const constrained = process.constrainedMemory()
  return gpuBytes() ?? Math.min(os.totalmem(), constrained > 0 ? constrained : Number.POSITIVE_INFINITY)
}

/** Undefined where there is no NVIDIA GPU, or its driver does not answer. */
function gpuBytes(): number | undefined {
  if (!existsSync('/dev/nvidia0')) return undefined
  try {
    const args = ['--query-gpu=memory.total', '--format=csv,noheader,nounits']
    const sizes = execFileSync('nvidia-smi', args, { encoding: 'utf8', timeout: 10_000, stdio: ['ignore', 'pipe', 'ignore'] })
    const found = sizes.trim().split('\n').map(Number)
    return found.every((mebibytes) => mebibytes > 0) ? Math.min(...found) * 2 ** 20 : undefined
  } catch {
    return undefined
  }
}
