// Every quantization that the engine's library offers is one that an export may be asked for, or is told why not.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import { fileTypes } from '../../../engine/llama/file-types.ts'
import { root } from '../../process/engine/engine-process.ts'

/** The library reads files of this type and makes none: it is written by the tools that train in it. */
const onlyRead = ['NVFP4']

test('the file types are those of the library’s own header', () => {
  const header = readFileSync(path.join(root, '.local/llama/source/include/llama.h'), 'utf8')
  const listed = [...header.matchAll(/^\s*LLAMA_FTYPE_(?:ALL|MOSTLY)_(\w+)\s*=\s*(\d+),/gm)].map(
    ([, name, number]) => [name!, Number(number)] as const,
  )
  assert.ok(listed.length > 30)
  assert.deepEqual(Object.fromEntries(listed.filter(([name]) => !onlyRead.includes(name))), { ...fileTypes })
})
