// Headers of safetensors files: the names and shapes of the tensors, without their data.
import { closeSync, openSync, readdirSync, readSync } from 'node:fs'
import path from 'node:path'

interface TensorInfo {
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
