// Child processes: they ignore the terminal, end with the server, and are stopped at their limits.
import assert from 'node:assert/strict'
import { execFileSync, spawn } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { type Child, type ChildOptions, childEnv, killChildren, runToEnd, spawnChild } from '../../lib/child-process.ts'
import { root } from '../../lib/root.ts'
import { until } from '../support/client.ts'
import { alive, children } from '../support/server.ts'

const python = path.join(root, '.local/python/bin/python')
const signals = ['SIGINT', 'SIGQUIT', 'SIGHUP'] as const
const programs: [what: string, command: string, args: string[]][] = [
  [
    'a Node program',
    process.execPath,
    ['-e', "process.stdin.on('data', () => console.log('here')); console.log('here')"],
  ],
  ['a Python program', python, ['-uc', "print('here')\nfor line in iter(input, ''): print('here')"]],
  [
    'a program of a Python program',
    python,
    [
      '-c',
      'import subprocess, sys\n' +
        "subprocess.run([sys.executable, '-uc', \"print('here')\\nfor line in iter(input, ''): print('here')\"])",
    ],
  ],
]
const env = { PATH: process.env.PATH }

after(killChildren)

test('children ignore the terminal’s signals; killChildren ends them all', async () => {
  const started: Child[] = []
  for (const [what, command, args] of programs) {
    let lines = 0
    const child = spawnChild(command, args, { env, stdout: () => void lines++ })
    started.push(child)
    await until(`${what} to start`, () => lines === 1)
    for (const signal of signals) child.kill(signal)
    child.stdin!.write('still?\n')
    const answered = await Promise.race([
      until('its answer', () => lines === 2).then(() => true),
      child.ended.then(() => false),
    ])
    assert.ok(answered, `${what} ended`)
  }
  killChildren()
  const ends = await Promise.all(started.map(({ ended }) => ended))
  assert.deepEqual(
    ends.map(({ killed_by }) => killed_by),
    ['SIGKILL', 'SIGKILL', 'SIGKILL'],
  )
  assert.ok(started.every(({ pid }) => !alive(pid!)))
})

test('a run of tests that is ended takes its suites along', async () => {
  const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-suites-'))
  const [file, pidFile] = [path.join(folder, 'endless.ts'), path.join(folder, 'pid')]
  const write = `require('node:fs').writeFileSync('${pidFile}', \`\${process.pid} \`)`
  writeFileSync(file, `${write}\nsetInterval(() => {}, 1000)`)
  const run = spawn(process.execPath, ['scripts/test.ts', file], { cwd: root, stdio: 'ignore' })
  try {
    await until('the suite to start', () => existsSync(pidFile) && readFileSync(pidFile, 'utf8').endsWith(' '))
    const pid = Number(readFileSync(pidFile, 'utf8'))
    run.kill('SIGTERM')
    await until('the suite to end', () => !alive(pid))
  } finally {
    run.kill('SIGKILL')
    rmSync(folder, { recursive: true })
  }
})

const runNode = (code: string, options: Partial<ChildOptions> = {}) =>
  runToEnd(process.execPath, ['-e', code], { env: {}, stdout: 'text', ...options })

test('a child ends at its limit of time, memory or output, or when its signal aborts', async () => {
  const limits = { max_ms: 60_000, max_memory_mb: 500 }
  const { status, stdout } = await runNode('console.log("é")', { limits })
  assert.deepEqual([status, stdout], [0, 'é\n'])
  const forever = 'setInterval(() => {}, 1000)'
  assert.equal((await runNode(forever, { limits: { ...limits, max_ms: 100 } })).exceeded, 'time')
  const grow = 'const all = []; setInterval(() => all.push(Buffer.alloc(5e7, 1)), 5)'
  assert.equal((await runNode(grow, { limits })).exceeded, 'memory')
  // The child's child ends with the pipe between them.
  const large = "process.stdin.resume().on('end', process.exit); globalThis.all = Buffer.alloc(6e8, 1)"
  const parent = `require('child_process').spawn(process.execPath, ['-e', ${JSON.stringify(large)}], { stdio: 'pipe' })`
  assert.equal((await runNode(parent, { limits: { ...limits, with_children: true } })).exceeded, 'memory')
  const print = "const s = 'x'.repeat(1e6); (function more() { process.stdout.write(s, more) })()"
  const printed = await runNode(print, { limits })
  assert.equal(printed.exceeded, 'output')
  assert.ok(printed.stdout.length <= 64e6)
  const gone = new AbortController()
  const left = runNode(forever, { signal: gone.signal })
  gone.abort(new Error('left'))
  await assert.rejects(left, /left/)
  await assert.rejects(runNode(forever, { signal: gone.signal }), /left/, 'aborted before the start')
})

test('the result has the end of stderr; a missing program is status 127', async () => {
  const { status, stderr } = await runNode("console.error('x'.repeat(1e5) + 'end'); process.exitCode = 3")
  assert.deepEqual([status, stderr.length, stderr.slice(-4)], [3, 3999, 'xend'])
  assert.equal((await runToEnd('/no/such/program', [], { env })).status, 127)
  await assert.rejects(runToEnd('/bin/true', ['x'.repeat(3e6)], { env }), { code: 'E2BIG' })
})

test('a handler of output that throws fails its child alone; a line without an end is bounded', async () => {
  const talk = "setInterval(() => { console.log('line'); console.error('line') }, 5)"
  const fail = () => {
    throw new Error('malformed')
  }
  for (const handlers of [{ stdout: fail }, { stdout: () => {}, onStderr: fail }]) {
    const child = spawnChild(process.execPath, ['-e', talk], { env: {}, ...handlers })
    await assert.rejects(child.ended, /malformed/)
    assert.ok(!alive(child.pid!))
  }
  const endless = "const s = 'x'.repeat(1e6); (function more() { process.stdout.write(s, more) })()"
  const { exceeded } = await spawnChild(process.execPath, ['-e', endless], { env: {}, stdout() {} }).ended
  assert.equal(exceeded, 'output')
})

test('an aborted child gets SIGTERM, and SIGKILL after its grace', async () => {
  const run = async (onTerm: string, grace_ms: number) => {
    const aborting = new AbortController()
    const code = `process.on('SIGTERM', () => { ${onTerm} }); setInterval(() => {}, 1000); console.log('ready')`
    const options = { env: {}, stdout: () => aborting.abort(), signal: aborting.signal, grace_ms }
    const { status, killed_by } = await spawnChild(process.execPath, ['-e', code], options).ended
    return { status, killed_by }
  }
  assert.deepEqual(await run('process.exit(75)', 60_000), { status: 75, killed_by: null })
  assert.deepEqual(await run('', 100), { status: null, killed_by: 'SIGKILL' })
})

test('a killed server leaves no reader of an untrusted file behind, even one whose main thread is busy', async () => {
  const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-children-'))
  const source = path.join(folder, 'pipe')
  // Reading it never ends: nobody writes.
  execFileSync('mkfifo', [source])
  const request = JSON.stringify({ format: 'jsonl', source, canonical: null, max_rows: 1, max_bytes: 1, out: folder })
  const readers = ['server/features/datasets/reader/main.ts', 'server/features/models/adapter-reader/main.ts']
  const busy = path.join(folder, 'busy.mjs')
  const library = path.join(root, 'lib/child-process.ts')
  writeFileSync(busy, `import { dieWithParent } from '${library}'\ndieWithParent()\nfor (;;);`)
  try {
    for (const script of [...readers, busy]) {
      const code = `import('${root}/server/platform/storage/untrusted-files.ts').then((module) =>
        module.readUntrusted('${path.relative(root, path.resolve(root, script))}', ${request}, 1e9))`
      const server = spawn(process.execPath, ['-e', code], { cwd: root, stdio: 'ignore' })
      const [reader] = await until('the reader', () => {
        const pids = children(server.pid!, path.basename(path.dirname(script)))
        return pids.length > 0 ? pids : undefined
      })
      server.kill('SIGKILL')
      await until(`the end of ${script}`, () => !alive(reader!))
    }
  } finally {
    rmSync(folder, { recursive: true })
  }
})

test('the environment of a child has no setting and no secret that is not named', () => {
  const names = { TUNERY_PORT: '1', TUNERY_X: '2', SOME_API_KEY: '3', WANDB_API_KEY: '4', TUNERY_WANDB_X: '5' }
  Object.assign(process.env, names)
  try {
    const inherited = (keep?: RegExp) => Object.keys(childEnv(keep)).filter((name) => name in names)
    assert.deepEqual(inherited(), [])
    assert.deepEqual(inherited(/^TUNERY_X$/), ['TUNERY_X'])
    assert.deepEqual(inherited(/^WANDB_/), ['WANDB_API_KEY'])
    assert.equal(childEnv().PATH, process.env.PATH)
  } finally {
    for (const name of Object.keys(names)) delete process.env[name]
  }
})
