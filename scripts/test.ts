// `npm test`: the type check and the linters, then every test, two files at a time. `--static` ends after the linters;
// names of files run these alone.
import { spawn, spawnSync } from 'node:child_process'
import { globSync } from 'node:fs'
import path from 'node:path'

const root = path.resolve(import.meta.dirname, '..')
const python = path.join(root, '.local/python/bin')
const seconds = (since: number) => `${((Date.now() - since) / 1000).toFixed(1)} s`

function step(name: string, command: string, args: string[]): void {
  const started = Date.now()
  console.log(`\n• ${name}`)
  const { status, error } = spawnSync(command, args, { cwd: root, stdio: 'inherit' })
  if (status !== 0) {
    console.error(`\n${name} failed${error ? `: ${error.message}` : ''}`)
    process.exit(1)
  }
  console.log(`  ${seconds(started)}`)
}

interface Suite {
  name: string
  command: string
  args: string[]
}

interface Outcome {
  passed: number
  failed: number
  skipped: number
}

/** Runs it and prints all that it said when it has ended: two suites at once would mix their lines. */
async function run({ name, command, args }: Suite): Promise<Outcome> {
  const started = Date.now()
  const child = spawn(command, args, { cwd: root, stdio: ['ignore', 'pipe', 'pipe'] })
  const said: Buffer[] = []
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (part: Buffer) => said.push(part))
  const status = await new Promise<number | null>((resolve, reject) => child.on('error', reject).on('close', resolve))
  const text = Buffer.concat(said).toString()
  console.log(`\n• ${name}, ${seconds(started)}\n${text.trimEnd()}`)
  return outcomeOf(text, status === 0)
}

/** What node:test's or pytest's own summary says. A suite that ended without one has failed. */
function outcomeOf(text: string, ok: boolean): Outcome {
  const said = (...patterns: RegExp[]) =>
    patterns.reduce((sum, pattern) => sum + Number(text.match(pattern)?.[1] ?? 0), 0)
  const passed = said(/^ℹ pass (\d+)$/m, /\b(\d+) passed\b.* in /)
  const failed = said(/^ℹ fail (\d+)$/m, /^ℹ cancelled (\d+)$/m, /\b(\d+) failed\b.* in /, /\b(\d+) errors?\b.* in /)
  const skipped = said(/^ℹ skipped (\d+)$/m, /\b(\d+) skipped\b.* in /)
  return { passed, failed: ok && passed + skipped > 0 ? failed : Math.max(1, failed), skipped }
}

step('type check', path.join(root, 'node_modules/.bin/tsc'), ['-p', '.'])
step('biome', path.join(root, 'node_modules/.bin/biome'), ['check', '--error-on-warnings', '.'])
step('ruff', path.join(python, 'ruff'), ['check', 'trainer', 'examples', 'bench', 'tests', 'scripts'])
step('ruff format', path.join(python, 'ruff'), [
  'format',
  '--check',
  'trainer',
  'examples',
  'bench',
  'tests',
  'scripts',
])
step('reference pages', process.execPath, ['scripts/docs.ts', '--check'])
step('hadolint', path.join(python, 'hadolint'), ['deploy/Dockerfile', 'deploy/Dockerfile.model'])
// An image has a name here and is built here: that is what the rule forbids.
step('dclint', path.join(root, 'node_modules/.bin/dclint'), [
  '--disable-rule',
  'no-build-and-image',
  '--max-warnings',
  '0',
  'deploy/compose.yaml',
])
if (!process.argv.includes('--static')) {
  const named = process.argv.slice(2)
  const files = named.length > 0 ? named : globSync('tests/{unit,service,process}/**/*.test.ts', { cwd: root }).sort()
  // A test that failed may leave something open, which must not hold up those after it for ever.
  const suites: Suite[] = files.map((file) => ({
    name: file,
    command: process.execPath,
    args: ['--test-force-exit', '--test-reporter=spec', file],
  }))
  // The longest first, so that it does not stand alone at the end.
  if (named.length === 0)
    suites.unshift({
      name: 'tests of the trainer',
      command: path.join(python, 'pytest'),
      args: ['-q', '--durations=8'],
    })
  // They take every core at the lowest priority: beside others they would take ten times as long, or measure these.
  const alone = suites.filter(({ name }) =>
    ['tests/process/demo.test.ts', 'tests/process/core-share.test.ts'].includes(name),
  )
  const beside = suites.filter((suite) => !alone.includes(suite))
  const started = Date.now()
  const total: Outcome = { passed: 0, failed: 0, skipped: 0 }
  const faulty: string[] = []
  const lane = async (from: Suite[]) => {
    for (let suite = from.shift(); suite; suite = from.shift()) {
      const { passed, failed, skipped } = await run(suite)
      total.passed += passed
      total.failed += failed
      total.skipped += skipped
      if (failed > 0) faulty.push(suite.name)
    }
  }
  // Two, as the smallest machine has two cores; more would have tests wait for each other's processes.
  await lane(alone)
  await Promise.all([lane(beside), lane(beside)])
  if (faulty.length > 0) console.error(`\nfailed: ${faulty.join(', ')}`)
  console.log(`\n${total.skipped} skipped, ${seconds(started)}\n${total.passed} passed, ${total.failed} failed`)
  process.exit(faulty.length > 0 ? 1 : 0)
}
