// The demo end to end, with real training of SmolLM2.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { globSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import { root } from '../../lib/root.ts'

test('npm run demo -- --exit: the base scores near 0, the tuned model at least 0.9 on held-out tickets', async () => {
  const demo = spawn('npm', ['run', '--silent', 'demo', '--', '--exit'], {
    cwd: root,
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  let output = ''
  for await (const text of demo.stdout) output += text
  const status = await new Promise((resolve) =>
    demo.exitCode === null ? demo.once('exit', resolve) : resolve(demo.exitCode),
  )
  assert.equal(status, 0, output)
  const result = JSON.parse(output.trim().split('\n').at(-1)!)
  console.log(JSON.stringify(result))
  assert.deepEqual(Object.keys(result), ['base_score', 'tuned_score', 'train_seconds', 'total_seconds'])
  assert.ok(result.base_score <= 0.1, `base ${result.base_score}`)
  assert.ok(result.tuned_score >= 0.9, `tuned ${result.tuned_score}`)
  assert.match(output, /step \d+\/\d+ {2}loss \d+\.\d+ {2}\d+ tokens\/s/)
  assert.deepEqual(globSync(path.join(root, '.local/demo-*')), [], 'the demo’s data is gone')
})
