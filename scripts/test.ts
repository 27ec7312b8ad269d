// `npm test`: the type check and the linters, the trainer's tests, then everything else. `--static` ends after the linters.
// node:test runs last, so that its summary stands at the end.
import { spawnSync } from 'node:child_process'
import { globSync } from 'node:fs'
import path from 'node:path'

const root = path.resolve(import.meta.dirname, '..')
const python = path.join(root, '.local/python/bin')

function step(name: string, command: string, args: string[]): void {
  const started = Date.now()
  console.log(`\n• ${name}`)
  const { status, error } = spawnSync(command, args, { cwd: root, stdio: 'inherit' })
  if (status !== 0) {
    console.error(`\n${name} failed${error ? `: ${error.message}` : ''}`)
    process.exit(1)
  }
  if (name !== 'tests') console.log(`  ${((Date.now() - started) / 1000).toFixed(1)} s`)
}

step('type check', path.join(root, 'node_modules/.bin/tsc'), ['-p', '.'])
step('biome', path.join(root, 'node_modules/.bin/biome'), ['check', '--error-on-warnings', '.'])
step('ruff', path.join(python, 'ruff'), ['check', 'trainer', 'examples', 'bench', 'tests', 'scripts'])
step('ruff format', path.join(python, 'ruff'), ['format', '--check', 'trainer', 'examples', 'bench', 'tests', 'scripts'])
step('hadolint', path.join(python, 'hadolint'), ['deploy/Dockerfile', 'deploy/Dockerfile.model'])
// An image has a name here and is built here: that is what the rule forbids.
step('dclint', path.join(root, 'node_modules/.bin/dclint'), ['--disable-rule', 'no-build-and-image', '--max-warnings', '0', 'deploy/compose.yaml'])
if (!process.argv.includes('--static')) {
  step('tests of the trainer', path.join(python, 'pytest'), ['-q'])
  // One file after the other: each has engines and trainers of its own, and the machine may have two cores.
  // A test that failed may leave something open, which must not hold up those after it for ever.
  const files = globSync('tests/{*,engine/*}.test.ts', { cwd: root }).sort()
  step('tests', process.execPath, ['--test', '--test-concurrency=1', '--test-force-exit', '--test-reporter=spec', ...files])
}
