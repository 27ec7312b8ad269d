// A second analyser, which also generates texts and runs them, finds no expression of the sources that takes more than
// linear time.
import assert from 'node:assert/strict'
import { createRequire } from 'node:module'
import path from 'node:path'
import { test } from 'node:test'
import { root } from '../../lib/root.ts'
import { collectExpressions } from '../support/regular-expressions.ts'

type Diagnostics = { status: 'safe' | 'unknown' | 'vulnerable'; attack?: { pattern: string; string: string } }
type Check = (source: string, flags: string, options: object) => Promise<Diagnostics>

const { check } = createRequire(path.join(root, '.local/peers/recheck/package.json'))('recheck') as { check: Check }

/**
 * What recheck finds, if it holds here: its own engine takes steps for assertions such as (?<!x) that V8 does not. Its
 * texts have some 70,000 characters, for which quadratic time is seconds.
 */
async function problemOf(source: string, flags: string): Promise<string | undefined> {
  const { status, attack } = await check(source, flags, { timeout: 60_000 })
  if (status !== 'vulnerable') return status === 'safe' ? undefined : 'not analysed in time'
  const expression = new RegExp(source, flags)
  const began = process.threadCpuUsage().user
  attack!.string.replace(expression, '')
  return process.threadCpuUsage().user - began > 200_000 ? attack!.pattern : undefined
}

test('recheck finds no regular expression that takes more than linear time', async () => {
  for (const source of ['a+$', String.raw` \([^)]*\)$`])
    assert.notEqual(await problemOf(source, ''), undefined, 'it finds what it should')
  const slow: string[] = []
  for (const [text, { source, flags, file }] of collectExpressions().expressions) {
    const problem = await problemOf(source, flags)
    if (problem) slow.push(`${file}: ${text}: ${problem}`)
  }
  assert.deepEqual(slow, [])
})
