import assert from 'node:assert/strict'
import { test } from 'node:test'
import { hasTooManyParts } from '../../lib/http/json-limits.ts'

test('parts of a body are counted outside of its strings, long ones with escapes included', () => {
  const within = (text: string) => JSON.stringify([text, text, {}])
  for (const text of ['[{:'.repeat(300), '[\\"'.repeat(300), `${'a'.repeat(300)}\\`, 'a'.repeat(300)]) {
    const bytes = Buffer.from(within(text))
    assert.deepEqual([hasTooManyParts(bytes, 2), hasTooManyParts(bytes, 1)], [false, true])
  }
  assert.equal(hasTooManyParts(Buffer.from(`["${'a'.repeat(300)}`), 1), false, 'a string that does not end')
})
