// Which fine-tuning methods a base allows on this machine, told from its size before its weights are here.
import { execFileSync } from 'node:child_process'
import { closeSync, existsSync, openSync, readdirSync, readSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import type { Method } from '../../contract/common.ts'

/**
 * Bytes of memory that a weight takes at the least while it is trained: frozen in bf16, frozen in 4 bits, or in float32
 * with its gradient and two moments. A run takes more (trainer/runtime/memory.py predicts it), so a method that is left
 * out can never fit; one that is listed may need a smaller batch.
 */
const least_bytes = { lora: 2, qlora: 0.55, full: 16 } as const satisfies Record<Method, number>

/** The methods that a base which writes text can be trained with in this many bytes of memory. */
export const methodsFor = (parameters: number, memory_bytes: number): Method[] =>
  (['lora', 'qlora', 'full'] as const).filter((method) => parameters * least_bytes[method] <= memory_bytes)

/**
 * The memory that training has here, in bytes: of the smallest GPU where there are any, else of the machine or of its
 * control group.
 */
export function trainingMemoryBytes(): number {
  const constrained = process.constrainedMemory()
  return gpuBytes() ?? Math.min(os.totalmem(), constrained > 0 ? constrained : Number.POSITIVE_INFINITY)
}

/** Undefined where there is no NVIDIA GPU, or its driver does not answer. */
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

export interface TensorInfo {
  dtype: string
  shape: number[]
  /** Where its bytes begin and end, counted from the end of the header. */
  data_offsets: [number, number]
}

/** No real checkpoint's header comes near; one that says more is made to fill memory. */
const largestHeader = 100e6

/** The tensors of a safetensors file by name, from its header alone. Throws an Error where the file is none. */
export function safetensorsHeader(
  file: string,
  max_bytes = largestHeader,
): { tensors: Record<string, TensorInfo>; header_bytes: number } {
  const fd = openSync(file, 'r')
  try {
    // It begins with the length of its JSON header, as a little-endian 64-bit number.
    const length = Buffer.alloc(8)
    if (readSync(fd, length, 0, 8, 0) < 8) throw new Error('it is too short')
    const bytes = Number(length.readBigUInt64LE())
    if (bytes > max_bytes) throw new Error('its header is too long')
    const header = Buffer.alloc(bytes)
    if (readSync(fd, header, 0, bytes, 8) < bytes) throw new Error('its header is cut off')
    const { __metadata__: _, ...tensors } = JSON.parse(header.toString('utf8')) as Record<string, TensorInfo>
    return { tensors, header_bytes: 8 + bytes }
  } finally {
    closeSync(fd)
  }
}

/** The shapes of all weights of a checkpoint folder, by name. */
export function shapesOf(folder: string): Map<string, number[]> {
  const shapes = new Map<string, number[]>()
  for (const file of readdirSync(folder).filter((name) => name.endsWith('.safetensors')))
    for (const [name, { shape }] of Object.entries(safetensorsHeader(path.join(folder, file)).tensors))
      shapes.set(name, shape)
  return shapes
}
