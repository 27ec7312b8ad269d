// Draft files: only a whole one of the model itself is drafted from.
import assert from 'node:assert/strict'
import { mkdtempSync, rmSync, truncateSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { readDrafts, separator } from '../../../engine/models/draft-file.ts'

const folder = mkdtempSync(path.join(tmpdir(), 'tunery-drafts-'))
const file = path.join(folder, 'drafts.bin')
after(() => rmSync(folder, { recursive: true }))

const tokens = [separator, 5, 6, separator, 5]
const suffixes = [4, 1, 2, 0, 3]
const vocab_size = 7
function write(numbers: number[], magic = 'TNDRAFT1'): string {
  writeFileSync(file, Buffer.concat([Buffer.from(magic), Buffer.from(Uint32Array.from(numbers).buffer)]))
  return file
}
const whole = () => write([tokens.length, vocab_size, ...tokens, ...suffixes])

test('a whole file gives its tokens and the order of their suffixes', () => {
  const drafts = readDrafts(whole(), vocab_size)
  assert.deepEqual([...drafts.tokens], tokens)
  assert.deepEqual([...drafts.suffixes], suffixes)
  // A vocabulary may be padded in the engine.
  assert.equal(readDrafts(file, vocab_size + 9).tokens.length, tokens.length)
})

test('a file that is missing, cut, of another kind or of another model is refused with the reason', () => {
  assert.throws(() => readDrafts(path.join(folder, 'nothing'), vocab_size), /ENOENT/)
  for (const size of [0, 15, 16, 16 + 8 * tokens.length - 1]) {
    truncateSync(whole(), size)
    assert.throws(() => readDrafts(file, vocab_size), /bytes|length/, `${size}`)
  }
  truncateSync(whole(), 17 + 8 * tokens.length)
  assert.throws(() => readDrafts(file, vocab_size), /length/)
  truncateSync(whole(), 1 << 30)
  assert.throws(() => readDrafts(file, vocab_size), /has 1073741824 bytes/)
  assert.throws(() => readDrafts(write([0, vocab_size], 'TNDRAFT2'), vocab_size), /no draft file/)
  // A length that is right only modulo 2^32.
  assert.throws(() => readDrafts(write([0x20000000, vocab_size]), vocab_size), /length/)
  whole()
  assert.throws(() => readDrafts(file, vocab_size - 1), /no token 6/)
  assert.throws(() => readDrafts(write([1, 5, 5, 0]), vocab_size), /no token 5/)
  assert.throws(() => readDrafts(write([1, vocab_size, 5, 1]), vocab_size), /a suffix begins at 1/)
})
