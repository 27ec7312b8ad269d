// A second analyser, which also generates texts and runs them, finds no expression of the sources that takes more than
// linear time.
import assert from 'node:assert/strict'
import { createRequire } from 'node:module'
import path from 'node:path'
import { test } from 'node:test'
import { root } from '../../lib/root.ts'
import { collectExpressions } from '../support/regular-expressions.ts'

type Diagnostics = { status: 'safe' | 'unknown' | 'vulnerable'; attack?: { pattern: string } }
type Check = (source: string, flags: string, options: object) => Promise<Diagnostics>

// Its generated texts are found slow by counting steps in an engine of its own: the same at each run.
const options = { timeout: 60_000, seed: 42 }

test('recheck finds no regular expression that takes more than linear time', async () => {
  const { check } = createRequire(path.join(root, '.local/peers/recheck/package.json'))('recheck') as { check: Check }
  assert.equal((await check('a+$', '', options)).status, 'vulnerable', 'it finds what it should')
  const slow: string[] = []
  for (const [text, { source, flags, file }] of collectExpressions().expressions) {
    const { status, attack } = await check(source, flags, options)
    if (status !== 'safe') slow.push(`${file}: ${text} is ${status}: ${attack?.pattern ?? 'not found out in time'}`)
  }
  assert.deepEqual(slow, [])
})
