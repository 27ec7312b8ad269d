// Which inputs of a matrix weigh how much, as llama.h's `llama_model_imatrix_data`.
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
  /** Of an array of the struct, as long as `memory` is held. */
  address: bigint
  memory: Buffer
}

/** struct { const char * name; const float * data; size_t size; }, and one of zeros behind the last. */
const structBytes = 24

/** Of a safetensors file of one float32 vector [inputs] for each matrix, by the matrix's name. */
export function readImportance(file: string): ImportanceMatrix {
  const bytes = readFileSync(file)
  const begin = 8 + Number(bytes.readBigUInt64LE())
  const header = Header.parse(JSON.parse(bytes.toString('utf8', 8, begin)))
  const vectors = Object.entries(header)
    .filter(([name]) => name !== '__metadata__')
    .map(([name, told]) => {
      const { shape, data_offsets } = Entry.parse(told)
      return {
        name: Buffer.from(`${name}\0`),
        size: shape[0],
        data: bytes.subarray(begin + data_offsets[0], begin + data_offsets[1]),
      }
    })
  const table = structBytes * (vectors.length + 1)
  const numbers = vectors.reduce((sum, { data }) => sum + data.length, 0)
  // One piece of memory, which nobody moves while the library reads it; what has numbers of four bytes comes first.
  const memory = Buffer.from(new ArrayBuffer(table + numbers + vectors.reduce((sum, { name }) => sum + name.length, 0)))
  const address = koffi.address(memory)
  let [data_at, name_at] = [table, table + numbers]
  for (const [index, { name, size, data }] of vectors.entries()) {
    data.copy(memory, data_at)
    name.copy(memory, name_at)
    const values = [address + BigInt(name_at), address + BigInt(data_at), BigInt(size)]
    for (const [place, value] of values.entries()) memory.writeBigUInt64LE(value, structBytes * index + 8 * place)
    data_at += data.length
    name_at += name.length
  }
  return { address, memory }
}
