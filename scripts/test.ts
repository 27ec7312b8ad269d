// `npm test`: type check and linters, then every test, two files at a time. `--static` ends after the linters; with
// file names, runs only these tests.
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

/** Runs a suite and prints its output at its end, so that the lines of two suites do not mix. */
async function run({ name, command, args }: Suite): Promise<Outcome> {
  const started = Date.now()
  const child = spawn(command, args, { cwd: root, stdio: ['ignore', 'pipe', 'pipe'] })
  const output: Buffer[] = []
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (part: Buffer) => output.push(part))
  const status = await new Promise<number | null>((resolve, reject) => child.on('error', reject).on('close', resolve))
  const text = Buffer.concat(output).toString()
  console.log(`\n• ${name}, ${seconds(started)}\n${text.trimEnd()}`)
  return outcomeOf(text, status === 0)
}

/** Reads the summary of node:test or pytest. A suite without one has failed. */
function outcomeOf(text: string, ok: boolean): Outcome {
  const count = (...patterns: RegExp[]) =>
    patterns.reduce((sum, pattern) => sum + Number(text.match(pattern)?.[1] ?? 0), 0)
  const passed = count(/^ℹ pass (\d+)$/m, /\b(\d+) passed\b.* in /)
  const failed = count(/^ℹ fail (\d+)$/m, /^ℹ cancelled (\d+)$/m, /\b(\d+) failed\b.* in /, /\b(\d+) errors?\b.* in /)
  const skipped = count(/^ℹ skipped (\d+)$/m, /\b(\d+) skipped\b.* in /)
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
// The disabled rule forbids an image with both a name and a build, which this file has.
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
  // --test-force-exit: a failed test may leave handles open, which must not block the run.
  const suites: Suite[] = files.map((file) => ({
    name: file,
    command: process.execPath,
    args: ['--test-force-exit', '--test-reporter=spec', file],
  }))
  // The longest suite first, so that it does not run alone at the end.
  if (named.length === 0)
    suites.unshift({
      name: 'tests of the trainer',
      command: path.join(python, 'pytest'),
      args: ['-q', '--durations=8'],
    })
  // These use all cores at the lowest priority: in parallel with others they would take ten times as long, or would
  // measure the others' load.
  const exclusiveSuites = suites.filter(({ name }) =>
    ['tests/process/demo.test.ts', 'tests/process/core-share.test.ts'].includes(name),
  )
  const parallelSuites = suites.filter((suite) => !exclusiveSuites.includes(suite))
  const started = Date.now()
  const total: Outcome = { passed: 0, failed: 0, skipped: 0 }
  const failedSuites: string[] = []
  const runner = async (from: Suite[]) => {
    for (let suite = from.shift(); suite; suite = from.shift()) {
      const { passed, failed, skipped } = await run(suite)
      total.passed += passed
      total.failed += failed
      total.skipped += skipped
      if (failed > 0) failedSuites.push(suite.name)
    }
  }
  // Two runners, for machines with two cores: with more, tests would wait for each other's processes.
  await runner(exclusiveSuites)
  await Promise.all([runner(parallelSuites), runner(parallelSuites)])
  if (failedSuites.length > 0) console.error(`\nfailed: ${failedSuites.join(', ')}`)
  console.log(`\n${total.skipped} skipped, ${seconds(started)}\n${total.passed} passed, ${total.failed} failed`)
  process.exit(failedSuites.length > 0 ? 1 : 0)
}
