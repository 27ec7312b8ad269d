// Lines of code are short enough to be read beside each other, strings and comments too. The formatters hold the rest.
import assert from 'node:assert/strict'
import { globSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import { root } from '../../lib/root.ts'

const columns = 120

// A released migration is not touched.
// A changed line of `scripts/setup/vision` compiles a library anew.
const exclude = [
  'scripts/setup/vision/**',
  'sdk/generated/**',
  'web/pages/new-job/generated/**',
  'server/platform/db/migrations/**',
]

test('no line of code is too long', () => {
  const folders = [
    'bench',
    'cli',
    'contract',
    'deploy',
    'engine',
    'examples',
    'lib',
    'mcp',
    'pictures',
    'scripts',
    'sdk',
    'server',
    'telemetry',
    'tests',
    'web',
  ]
  const files = globSync([`{${folders.join()}}/**/*.{ts,tsx,mjs,cpp,h}`, '{tests,trainer}/**/*.{py,cpp,h}'], {
    cwd: root,
    exclude,
  })
  const long = files.flatMap((file) =>
    readFileSync(path.join(root, file), 'utf8')
      .split('\n')
      .flatMap((line, index) => (line.length > columns ? [`${file}:${index + 1} has ${line.length}`] : [])),
  )
  assert.ok(files.length > 100)
  assert.deepEqual(long, [])
})
