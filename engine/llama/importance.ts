// Importance matrix for quantization: how much each input of a matrix matters, as llama.h's `llama_model_imatrix_data`.
import { readFileSync } from 'node:fs'
import koffi from 'koffi'
import { z } from 'zod'

const Entry = z.object({
  dtype: z.literal('F32'),
  shape: z.tuple([z.int()]),
  data_offsets: z.tuple([z.int(), z.int()]),
})
const Header = z.record(z.string(), z.unknown())

export interface ImportanceMatrix {
  /** Address of an array of the struct. Valid while `memory` is referenced. */
  address: bigint
  memory: Buffer
}

/** struct { const char * name; const float * data; size_t size; }; the array ends with one of zeros. */
const structBytes = 24

/** Reads a safetensors file with one float32 vector [inputs] per matrix, by the matrix's name. */
export function readImportanceMatrix(file: string): ImportanceMatrix {
  const bytes = readFileSync(file)
  const dataStart = 8 + Number(bytes.readBigUInt64LE())
  const header = Header.parse(JSON.parse(bytes.toString('utf8', 8, dataStart)))
  const vectors = Object.entries(header)
    .filter(([name]) => name !== '__metadata__')
    .map(([name, entry]) => {
      const { shape, data_offsets } = Entry.parse(entry)
      return {
        name: Buffer.from(`${name}\0`),
        size: shape[0],
        data: bytes.subarray(dataStart + data_offsets[0], dataStart + data_offsets[1]),
      }
    })
  const table = structBytes * (vectors.length + 1)
  const dataBytes = vectors.reduce((sum, { data }) => sum + data.length, 0)
  // One ArrayBuffer, which does not move while the library reads it. The floats come before the names, for alignment.
  const memory = Buffer.from(
    new ArrayBuffer(table + dataBytes + vectors.reduce((sum, { name }) => sum + name.length, 0)),
  )
  const address = koffi.address(memory)
  let [data_at, name_at] = [table, table + dataBytes]
  for (const [index, { name, size, data }] of vectors.entries()) {
    data.copy(memory, data_at)
    name.copy(memory, name_at)
    const values = [address + BigInt(name_at), address + BigInt(data_at), BigInt(size)]
    for (const [field, value] of values.entries()) memory.writeBigUInt64LE(value, structBytes * index + 8 * field)
    data_at += data.length
    name_at += name.length
  }
  return { address, memory }
}
