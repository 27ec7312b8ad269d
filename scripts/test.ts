// `npm test`: static checks, unit and service tests, and those process tests that show each guarantee once.
// `--full` runs everything (`npm run test:full`), `--static` the checks alone, names of files these files alone.
import { type ChildProcess, spawn } from 'node:child_process'
import {
  chmodSync,
  existsSync,
  globSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  statfsSync,
  writeFileSync,
} from 'node:fs'
import path from 'node:path'

const root = path.resolve(import.meta.dirname, '..')
const python = path.join(root, '.local/python/bin')
const bin = (name: string) => path.join(root, 'node_modules/.bin', name)
const seconds = (since_ms: number) => (Date.now() - since_ms) / 1000

interface Suite {
  name: string
  command: string
  args: string[]
  /** Uses every core, or measures: runs alone. */
  exclusive?: boolean
  /** Has one busy thread, and often limits of time: runs beside another such suite, before those of more processes. */
  quick?: boolean
  /** Prints no summary of tests: its exit status says everything. */
  check?: boolean
  /** Runs on Postgres. */
  postgres?: boolean
}

interface Outcome {
  passed: number
  failed: number
  skipped: number
}

const pythonFolders = ['trainer', 'examples', 'bench', 'tests', 'scripts']
/** What has not changed since the last check is not checked again: a tenth of the time. A new `npm ci` forgets it. */
const checkTypes = (project: string) => {
  const state = `node_modules/.cache/tsc/${project === '.' ? 'root' : project}.tsbuildinfo`
  // Several checkers at once each check the types that they share: in all 2.5 times the processor time.
  return ['--noEmit', '-p', project, '--singleThreaded', '--incremental', '--tsBuildInfoFile', state]
}
const checks: Suite[] = [
  { name: 'type check', command: bin('tsc'), args: checkTypes('.') },
  { name: 'type check of the dashboard', command: bin('tsc'), args: checkTypes('web') },
  { name: 'unbound methods', command: process.execPath, args: ['scripts/check-unbound-methods.ts'] },
  { name: 'biome', command: bin('biome'), args: ['check', '--error-on-warnings', '.'] },
  { name: 'type check of the trainer', command: process.execPath, args: ['scripts/check-python-types.ts'] },
  { name: 'ruff', command: path.join(python, 'ruff'), args: ['check', ...pythonFolders] },
  { name: 'ruff format', command: path.join(python, 'ruff'), args: ['format', '--check', ...pythonFolders] },
  { name: 'reference pages', command: process.execPath, args: ['scripts/docs.ts', '--check'] },
  { name: 'hadolint', command: path.join(python, 'hadolint'), args: ['deploy/Dockerfile', 'deploy/Dockerfile.model'] },
  {
    name: 'dclint',
    command: bin('dclint'),
    // The image has a name here and is built here, which this rule forbids.
    args: ['--disable-rule', 'no-build-and-image', '--max-warnings', '0', 'deploy/compose.yaml'],
  },
].map((suite) => ({ ...suite, check: true, quick: suite.name !== 'biome' }))

/** Room for new objects, which takes a twentieth off the processor time of a service's tests. */
const young = ['--min-semi-space-size=32', '--max-semi-space-size=32']
/** A failed test may leave something open, which must not block the ones after it forever. */
const runner = ['--import', './tests/support/without-async-hooks.ts', '--test-force-exit', '--test-reporter=spec']
const nodeArgs = [...young, ...runner]
const fileSuite = (file: string): Suite => ({
  name: file,
  command: process.execPath,
  args: [...nodeArgs, file],
  exclusive: alone.includes(file),
})
/** A file that the command line names: of the trainer under pytest, another under node:test. */
const namedSuite = (file: string): Suite =>
  file.startsWith('trainer/')
    ? { name: file, command: path.join(python, 'pytest'), args: ['-q', file] }
    : fileSuite(file)
/** Its limits of time allow for no other test in its process. */
const grammarLimits = 'tests/unit/engine/grammar-limits.test.ts'
const alone = ['tests/process/demo.full.test.ts']

function suitesOf(full: boolean): Suite[] {
  const find = (pattern: string) => globSync(pattern, { cwd: root }).filter((file) => full || !isFull(file))
  const unit = find('tests/unit/**/*.test.ts').sort()
  const unitSuites = full
    ? unit.map(fileSuite)
    : [
        fileSuite(grammarLimits),
        ...together(
          unit.filter((file) => file !== grammarLimits),
          unitFilesTogether,
        ),
      ]
  const trainer: Suite = {
    name: 'trainer/tests',
    command: path.join(python, 'pytest'),
    // Two processes would each import torch.
    args: ['-q', '--durations=8', ...(full ? ['-n', '2', '--dist', 'loadfile'] : ['-p', 'no:xdist'])],
    exclusive: full,
  }
  const files = find('tests/{service,process,soak,browser}/**/*.test.ts').filter(
    (file) => full || !postgres || !onPostgresAlone.includes(nameOf(file)),
  )
  const onPostgres = !postgres
    ? []
    : find('tests/service/**/*.test.ts').filter((file) => full || !onSqliteAlone.includes(nameOf(file)))
  const exclusive = alone.filter((file) => full || !isFull(file))
  return [
    trainer,
    ...unitSuites.map((suite) => ({ ...suite, quick: true })),
    ...exclusive.map(fileSuite),
    ...inProcesses(files.filter(shared), full),
    ...inProcesses(onPostgres, full).map((suite) => ({ ...suite, name: `${suite.name} on Postgres`, postgres: true })),
  ]
}

/**
 * A process for each file; in `npm test` one for several of the small service and process tests, which would take
 * longer to start than to run.
 */
function inProcesses(files: string[], full: boolean): Suite[] {
  const isSmall = (file: string) =>
    !full && (file.startsWith('tests/service/') ? !large.includes(nameOf(file)) : smallProcesses.includes(nameOf(file)))
  const groups = ['service', 'process'].flatMap((tier) => {
    const small = files.filter((file) => file.startsWith(`tests/${tier}/`) && isSmall(file)).sort()
    return together(small, filesTogether)
  })
  const isLarger = (file: string) =>
    !full && path.dirname(file) === 'tests/process' && largerProcesses.includes(nameOf(file))
  const larger = together(files.filter(isLarger).sort(), largerFilesTogether)
  return [...files.filter((file) => !isSmall(file) && !isLarger(file)).map(fileSuite), ...larger, ...groups]
}

/** Suites of at most `size` files, each in one process; such a file has no `await` at its top. */
function together(files: string[], size: number): Suite[] {
  const count = Math.ceil(files.length / size)
  return Array.from({ length: count }, (_, group) => {
    const chosen = files.filter((_, index) => index % count === group)
    const folder = path.dirname(chosen[0]!)
    const names = chosen.map((file) => path.relative(folder, file).replace('.test.ts', ''))
    return {
      name: `${folder}/{${names.join(',')}}`,
      command: process.execPath,
      args: [...nodeArgs, 'tests/support/together.ts', ...chosen],
    }
  })
}
const filesTogether = 10
/** So that no suite is so long that it ends alone. */
const largerFilesTogether = 4
const unitFilesTogether = 20
/** Process tests of a few seconds that change nothing of their own process. */
const smallProcesses = [
  'canaries',
  'core-share',
  'downloads',
  'engine-process',
  'gates',
  'helm',
  'http-client-tls',
  'idle',
  'inference',
  'lost-slots',
  'machine',
  'pictures',
  'replicas',
  'responses',
  'sign-in-link',
  'stored-completions',
  'timeline',
  'tokens',
  'upload',
  'upstreams',
  'usage',
  'webhook-guide',
  'webhook-sending',
]
/** Those that take longer, and start the service in their own process, which takes over a second to load. */
const largerProcesses = [
  'add-gguf',
  'backup',
  'batches',
  'evaluations',
  'exports',
  'job-life',
  'job-watch',
  'malformed-results',
  'models',
  'openai-evals',
  'openai-fine-tuning',
  'preferences',
  'sharing',
  'vision',
  'weights',
]
/** Service tests of more than some seconds, or that change their process. */
const large = [
  'cli',
  'database',
  'export-cli',
  'hardening',
  'import-openai',
  'isolation',
  'limits',
  'migrate-data',
  'servers',
  'shared-limits',
  'silent-postgres',
  'slow-clients',
  'training-runs',
  'webhooks',
]
/**
 * Service tests of SQLite, of what the database has no part in, and of what has plain statements only, as accounts,
 * scopes and sessions: `npm test` runs them on SQLite alone, `npm run test:full` on both.
 */
const onSqliteAlone = [
  'accounts',
  'catalogue',
  'cli',
  'database',
  'datasets',
  'earlier-rows',
  'errors',
  'exact-bodies',
  'export-cli',
  'export-push',
  'fetched-pictures',
  'formats',
  'hardening',
  'hub-datasets',
  'import-openai',
  'invitations',
  'isolation',
  'large-pages',
  'late-changes',
  'leaving',
  'limits',
  'mcp',
  'metrics',
  'oidc',
  'oidc-sign-up',
  'openapi',
  'passkeys',
  'picture-rows',
  'plans',
  'scaling',
  'scopes',
  'sdk',
  'session-ends',
  'session-work',
  'sign-in',
  'sign-in-guards',
  'sign-in-limits',
  'slow-clients',
  'space',
  'upstream-faults',
  'upstream-guards',
  'validation',
  'web',
  'webhook-addresses',
  'webhook-secrets',
]
/** Tests that wait for windows and timeouts for most of their time: one of them runs beside two others. */
const mostlyWaiting = [
  'database',
  'export-cli',
  'hostile',
  'shared-limits',
  'silent-postgres',
  'slow-clients',
  'traces',
  'webhooks',
]
/**
 * Service tests of several processes, and of moves between databases: where there is Postgres they run there alone. So
 * do those of webhooks, which process tests send from SQLite.
 */
const onPostgresAlone = ['migrate-data', 'servers', 'shared-limits', 'silent-postgres', 'training-runs', 'webhooks']
const nameOf = (file: string) => path.basename(file, '.test.ts')

const isFull = (file: string) => file.endsWith('.full.test.ts')
const shared = (file: string) => !alone.includes(file)

/**
 * Durations of the last run, in seconds by suite: the longest starts first, so that it does not run alone at the end.
 */
const timesFile = path.join(root, '.local/test-times.json')
const times: Record<string, number> = existsSync(timesFile) ? JSON.parse(readFileSync(timesFile, 'utf8')) : {}
/** Those of the longest suites, before the first run here; others take ten, or four for each file of a group. */
const firstTimes: Record<string, number> = {
  'trainer/tests': 120,
  'type check': 20,
  'type check of the dashboard': 15,
  'tests/unit/engine/grammar-limits.test.ts': 15,
  'tests/browser/dashboard.test.ts': 30,
  'tests/process/crash.test.ts': 40,
  'tests/process/evaluations.test.ts': 30,
  'tests/process/exports.test.ts': 30,
  'tests/process/job-life.test.ts': 20,
  'tests/process/job-watch.test.ts': 20,
  'tests/process/openai-evals.test.ts': 20,
  'tests/process/openai-fine-tuning.test.ts': 20,
  'tests/process/preferences.test.ts': 20,
  'tests/process/python-graders.test.ts': 30,
  'tests/service/graders.test.ts': 20,
  'tests/service/cli.test.ts': 30,
}
const fileTime = 4
const expectedTime = ({ name, args, quick }: Suite) => {
  const files = quick ? [] : args.filter((arg) => arg.endsWith('.test.ts'))
  const first = files.reduce((sum, file) => sum + (firstTimes[file] ?? fileTime), 0)
  return times[name] ?? firstTimes[name] ?? Math.max(10, first)
}

/** CPU time of each suite with its descendants, in seconds: the sum over the cores is the least that a run can take. */
const cpuTimes: Record<string, number> = {}
/** Their processes end with this one. */
const running = new Set<ChildProcess>()
/** Runs its arguments, and writes what CPU time they and their descendants took. */
const timed = '"$0" "$@" 3>&-; status=$?; times >&3; exit $status'

/** Runs a suite and prints its output when it has ended: the output of two at once would mix. */
async function run({ name, command, args, check }: Suite, env: NodeJS.ProcessEnv): Promise<Outcome & { text: string }> {
  const started = Date.now()
  const child = spawn('sh', ['-c', timed, command, ...args], {
    cwd: root,
    stdio: ['ignore', 'pipe', 'pipe', 'pipe'],
    env,
    // A process group of its own, which ends as one.
    detached: true,
  })
  running.add(child)
  const output: Buffer[] = []
  for (const stream of [child.stdout, child.stderr]) stream!.on('data', (part: Buffer) => output.push(part))
  let cpu = ''
  child.stdio[3]!.on('data', (part: Buffer) => {
    cpu += part
  })
  const status = await new Promise<number | null>((resolve) =>
    child.on('error', (error) => output.push(Buffer.from(error.message))).on('close', resolve),
  )
  running.delete(child)
  const text = Buffer.concat(output).toString()
  times[name] = seconds(started)
  cpuTimes[name] = [...cpu.matchAll(/(\d+)m([\d.]+)s/g)].reduce((sum, [, m, s]) => sum + Number(m) * 60 + Number(s), 0)
  console.log(`\n• ${name}, ${times[name].toFixed(1)} s, ${cpuTimes[name].toFixed(1)} s of CPU\n${text.trimEnd()}`)
  return { ...(check ? { passed: 0, failed: status === 0 ? 0 : 1, skipped: 0 } : outcomeOf(text, status === 0)), text }
}

/** Reads the summary of node:test or pytest. A suite that ended without one has failed. */
function outcomeOf(text: string, ok: boolean): Outcome {
  const count = (...patterns: RegExp[]) =>
    patterns.reduce((sum, pattern) => sum + Number(text.match(pattern)?.[1] ?? 0), 0)
  const passed = count(/^ℹ pass (\d+)$/m, /\b(\d+) passed\b.* in /)
  const failed = count(/^ℹ fail (\d+)$/m, /^ℹ cancelled (\d+)$/m, /\b(\d+) failed\b.* in /, /\b(\d+) errors?\b.* in /)
  const skipped = count(/^ℹ skipped (\d+)$/m, /\b(\d+) skipped\b.* in /)
  return { passed, failed: ok && passed + skipped > 0 ? failed : Math.max(1, failed), skipped }
}

/** A Postgres server for the tests: that of TEST_DATABASE_URL, or one from the machine's own programs. */
async function findPostgres(): Promise<{ url: string; template?: string; stop(): Promise<void> } | undefined> {
  const url = process.env.TEST_DATABASE_URL
  if (url) return { url, async stop() {} }
  const { createTemplate, postgresTest, startPostgres } = await import('../tests/support/postgres.ts')
  if (!postgresTest.skip) {
    const server = await startPostgres({ durable: false })
    return { ...server, template: await createTemplate(server.url) }
  }
  console.log(`• service tests on Postgres: skipped. ${postgresTest.skip}, or set TEST_DATABASE_URL`)
  return undefined
}

/** Tests write some hundred MB in all, and delete them as they go. */
const memoryFolder_bytes = 4e9

/**
 * A folder in memory for the tests' data folders, where there is room: what they sync to a disk costs time, and no test
 * survives the machine. Undefined: theirs are where TMPDIR says.
 */
function memoryFolder(): string | undefined {
  const memory = '/dev/shm'
  if (process.env.TMPDIR || !existsSync(memory)) return undefined
  const { bavail, bsize } = statfsSync(memory)
  const free = Math.min(bavail * bsize, process.availableMemory())
  if (free < memoryFolder_bytes) return undefined
  // A short name: paths of sockets have 108 bytes at most.
  const folder = mkdtempSync(path.join(memory, 'tunery-'))
  // Postgres runs as another user.
  chmodSync(folder, 0o755)
  return folder
}

let temporary: string | undefined
for (const signal of ['SIGHUP', 'SIGINT', 'SIGTERM'] as const) process.on(signal, () => process.exit(1))
process.on('exit', () => {
  for (const { pid } of running)
    try {
      process.kill(-pid!)
    } catch {
      // It has ended.
    }
  // They end meanwhile, and may still write.
  if (temporary) rmSync(temporary, { recursive: true, force: true, maxRetries: 5 })
})

const words = process.argv.slice(2)
const full = words.includes('--full')
const named = words.filter((word) => !word.startsWith('--'))
const postgres = words.includes('--static') || named.length > 0 ? undefined : await findPostgres()
const tests = words.includes('--static') ? [] : named.length > 0 ? named.map(namedSuite) : suitesOf(full)
const all = named.length > 0 ? tests : [...checks, ...tests]
temporary = full || words.includes('--static') || named.length > 0 ? undefined : memoryFolder()
// Suites run side by side: at the default priority a trainer would wait for every other suite.
const env: NodeJS.ProcessEnv = {
  TUNERY_TRAINING_PRIORITY: 'normal',
  ...process.env,
  ...(temporary && { TMPDIR: temporary }),
  ...((full || named.length > 0) && { TEST_FULL: '1' }),
}

const started = Date.now()
const total: Outcome = { passed: 0, failed: 0, skipped: 0 }
/** Output of the suites that failed: a log is often cut to its end. */
const failures: { name: string; text: string }[] = []
async function worker(suites: Suite[]): Promise<void> {
  for (let suite = suites.shift(); suite; suite = suites.shift()) {
    const { passed, failed, skipped, text } = await run(suite, {
      ...env,
      ...(suite.postgres && { TEST_DATABASE_URL: postgres!.url }),
      ...(suite.postgres && postgres!.template && { TEST_DATABASE_TEMPLATE: postgres!.template }),
    })
    total.passed += passed
    total.failed += failed
    total.skipped += skipped
    if (failed > 0) failures.push({ name: suite.name, text })
  }
}
const longestFirst = (suites: Suite[]) => suites.sort((a, b) => expectedTime(b) - expectedTime(a))
await worker(all.filter(({ exclusive }) => exclusive))
const quick = longestFirst(all.filter(({ quick }) => quick))
const sideBySide = longestFirst(all.filter(({ exclusive, quick }) => !exclusive && !quick))
const waits = ({ name }: Suite) => mostlyWaiting.includes(nameOf(name.replace(/ on Postgres$/, '')))
const busy = sideBySide.filter((suite) => !waits(suite))
// The smallest machine has two cores. Tests of several processes wait a fifth of their time, which a third one uses.
const waiting = worker(sideBySide.filter(waits))
await Promise.all([worker(quick), worker(quick)])
await Promise.all([worker(busy), worker(busy), worker(busy), waiting])
await postgres?.stop()
mkdirSync(path.dirname(timesFile), { recursive: true })
writeFileSync(timesFile, JSON.stringify(times))
for (const { name, text } of failures) console.error(`\nfailed: ${name}\n${text.trimEnd()}`)
if (failures.length > 0) console.error(`\nfailed: ${failures.map(({ name }) => name).join(', ')}`)
const costliest = Object.entries(cpuTimes).sort(([, a], [, b]) => b - a)
if (costliest.length >= 10) {
  const lines = costliest.slice(0, 20).map(([name, s]) => `${s.toFixed(1).padStart(7)} s  ${name.slice(0, 100)}`)
  console.log(`\nmost CPU time:\n${lines.join('\n')}`)
}
const cpuTotal = costliest.reduce((sum, [, s]) => sum + s, 0)
console.log(`\n${total.skipped} skipped, ${seconds(started).toFixed(1)} s, ${cpuTotal.toFixed(0)} s of CPU`)
console.log(`${total.passed} passed, ${total.failed} failed`)
process.exit(failures.length > 0 ? 1 : 0)
