// The commands that CONTRIBUTING.md and the workflows name exist, and CONTRIBUTING.md names every test command.
import assert from 'node:assert/strict'
import { globSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import { parse } from 'yaml'
import { root } from '../../lib/root.ts'

const read = (file: string) => readFileSync(path.join(root, file), 'utf8')
const scripts = Object.keys(JSON.parse(read('package.json')).scripts)
/** The npm scripts that a text runs. */
const named = (text: string) =>
  [...text.matchAll(/\bnpm (?:run )?((?:test|check|bench|docs|setup)[:\w]*)/g)].map(([, name]) => name!)

test('the table of CONTRIBUTING.md has every command that tests, checks or measures, and they exist', () => {
  const rows = named(
    read('CONTRIBUTING.md')
      .match(/^\| `npm .*\|$/gm)!
      .map((row) => row.split('|')[1])
      .join('\n'),
  )
  const expected = scripts.filter((name) => /^(test|check|bench)/.test(name))
  assert.deepEqual(rows.toSorted(), expected.toSorted())
  for (const name of named(read('CONTRIBUTING.md'))) assert.ok(scripts.includes(name), name)
})

interface Step {
  uses?: string
  run?: string
  with?: { key?: string; 'node-version-file'?: string }
}

test('the workflows run existing commands, pin actions by major version, and key their cache by existing files', () => {
  const files = globSync('.github/workflows/*.yml', { cwd: root }).sort()
  assert.deepEqual(files, ['.github/workflows/nightly.yml', '.github/workflows/test.yml'])
  const commands = files.flatMap((file) => {
    const { jobs } = parse(read(file)) as { jobs: Record<string, { steps: Step[] }> }
    const steps = Object.values(jobs).flatMap((job) => job.steps)
    for (const { uses, with: options } of steps) {
      if (uses) assert.match(uses, /^actions\/[\w-]+@v\d+$/)
      const hashed = [...(options?.key?.matchAll(/'([^']+)'/g) ?? [])].map(([, pattern]) => pattern!)
      if (uses?.startsWith('actions/cache')) assert.ok(hashed.length > 3)
      for (const pattern of hashed) assert.ok(globSync(pattern, { cwd: root }).length > 0, pattern)
    }
    return steps.flatMap(({ run }) => (run ? named(run) : []))
  })
  assert.deepEqual(commands, ['test:full', 'test'])
  for (const name of commands) assert.ok(scripts.includes(name))
})
