// The engine's file types against the library's header, so that no quantization is missing from exports.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import { fileTypes } from '../../../engine/llama/file-types.ts'
import { root } from '../../process/engine/engine-process.ts'

/** The library reads this type but cannot write it. */
const readOnlyTypes = ['NVFP4']

test('the file types equal those in the library’s header', () => {
  const header = readFileSync(path.join(root, '.local/llama/source/include/llama.h'), 'utf8')
  const listed = [...header.matchAll(/^\s*LLAMA_FTYPE_(?:ALL|MOSTLY)_(\w+)\s*=\s*(\d+),/gm)].map(
    ([, name, number]) => [name!, Number(number)] as const,
  )
  assert.ok(listed.length > 30)
  assert.deepEqual(Object.fromEntries(listed.filter(([name]) => !readOnlyTypes.includes(name))), { ...fileTypes })
})
