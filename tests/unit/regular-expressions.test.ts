// No regular expression of the service takes more than linear time for any text: not by backtracking, nor by beginning
// again at each character. `scslre` finds both, as `eslint-plugin-regexp` does with it. What clients write as a pattern
// runs in RE2, or in a thread that can be ended.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { analyse } from 'scslre'
import { collectExpressions, type Expression } from '../support/regular-expressions.ts'

const sources = collectExpressions()

const problemsOf = ({ source, flags }: Pick<Expression, 'source' | 'flags'>) =>
  analyse({ source, flags }).reports.map(({ type }) => type)

test('the check finds expressions that take more than linear time', () => {
  for (const source of [String.raw`\{\{\s*([^{}]*?)\s*\}\}`, '^(a+)+$', String.raw`\/+$`, String.raw`\s*\n`])
    assert.notDeepEqual(problemsOf({ source, flags: 'g' }), [], source)
  assert.deepEqual(problemsOf({ source: String.raw`(?<!\/)\/+$`, flags: '' }), [])
})

test('every regular expression of the sources takes linear time', () => {
  const { expressions } = sources
  assert.ok(expressions.size > 200)
  const slow = [...expressions].filter(([, expression]) => problemsOf(expression).length > 0)
  assert.deepEqual(
    slow.map(([text, { file }]) => `${file}: ${text}`),
    [],
    'begin a repetition where nothing of it comes before: (?<!x)x+y instead of x+y',
  )
})

/** Where a text becomes a regular expression, and why none of a client's is searched by it. */
const ofTexts: Record<string, string> = {
  'cli/support/text.ts': 'of constants',
  'contract/common.ts': 'of constants',
  'engine/chat/learn-calls.ts': 'of words of the probes',
  'engine/chat/thinking.ts': 'of names and efforts, which are constants',
  'engine/chat/user-text.ts': 'a class of characters, of the tokens of a model',
  'engine/grammar/patterns.ts': 'only parsed, to learn whether it is one',
  'engine/llama/library.ts': 'of the name of a library',
  'pictures/data-urls.ts': 'of constants',
  'server/features/datasets/hugging-face.ts': 'of an escaped word, searched in the names of files',
  'server/platform/http/errors.ts': 'of constants',
  'server/features/hub/checkpoint.ts': 'of constants',
  'server/features/machine/engine-state.ts': 'of constants',
  'web/pages/docs/search.tsx': 'of escaped words, in the browser of the one who typed them',
}

test('no other file makes a regular expression of a text', () => {
  assert.deepEqual([...new Set(sources.made)].sort(), Object.keys(ofTexts).sort())
})
