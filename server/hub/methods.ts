// The fine-tuning methods that a base allows on this machine by its parameter count, and safetensors headers.
import { execFileSync } from 'node:child_process'
import { closeSync, existsSync, openSync, readdirSync, readSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import type { Method } from '../../contract/common.ts'

/**
 * Minimum bytes of memory per weight in training: frozen in bf16, frozen in 4 bits, or in float32 with its gradient and
 * two moments. A run needs more (trainer/runtime/memory.py predicts it): a method that is left out can never fit, and a
 * listed one may need a smaller batch.
 */
const min_bytes_per_weight = { lora: 2, qlora: 0.55, full: 16 } as const satisfies Record<Method, number>

/** The methods that a text model of this size allows in `memory_bytes`. */
export const methodsFor = (parameters: number, memory_bytes: number): Method[] =>
  (['lora', 'qlora', 'full'] as const).filter((method) => parameters * min_bytes_per_weight[method] <= memory_bytes)

/** Memory for training in bytes: of the smallest GPU if there are any, else of the machine or its control group. */
export function trainingMemoryBytes(): number {
  const constrained = process.constrainedMemory()
  return gpuBytes() ?? Math.min(os.totalmem(), constrained > 0 ? constrained : Number.POSITIVE_INFINITY)
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

export interface TensorInfo {
  dtype: string
  shape: number[]
  /** Start and end of its bytes, counted from the end of the header. */
  data_offsets: [number, number]
}

/** Far above any real checkpoint's header. A larger one is meant to exhaust memory. */
const max_header_bytes = 100e6

/** The tensors of a safetensors file by name, from its header alone. Throws an Error if the header is invalid. */
export function safetensorsHeader(
  file: string,
  max_bytes = max_header_bytes,
): { tensors: Record<string, TensorInfo>; header_bytes: number } {
  const fd = openSync(file, 'r')
  try {
    // The file starts with the length of its JSON header as a little-endian 64-bit number.
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

/** The shapes of all tensors in a checkpoint folder, by name. */
export function shapesOf(folder: string): Map<string, number[]> {
  const shapes = new Map<string, number[]>()
  for (const file of readdirSync(folder).filter((name) => name.endsWith('.safetensors')))
    for (const [name, { shape }] of Object.entries(safetensorsHeader(path.join(folder, file)).tensors))
      shapes.set(name, shape)
  return shapes
}
