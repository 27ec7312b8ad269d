// Child processes ignore the terminal and end with the server.
import assert from 'node:assert/strict'
import type { ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import path from 'node:path'
import { after, test } from 'node:test'
import { killChildren, spawnChild } from '../../lib/child-process.ts'
import { root } from '../../lib/root.ts'
import { alive } from '../support/server.ts'

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

after(killChildren)

test('children ignore the terminal’s signals; killChildren ends them all', async () => {
  const children: ChildProcess[] = []
  for (const [what, command, args] of programs) {
    const child = spawnChild(command, args, { stdio: ['pipe', 'pipe', 'ignore'] })
    children.push(child)
    await once(child.stdout, 'data')
    for (const signal of signals) child.kill(signal)
    child.stdin.write('still?\n')
    const answered = await Promise.race([
      once(child.stdout, 'data').then(() => true),
      once(child, 'exit').then(() => false),
    ])
    assert.ok(answered, `${what} ended`)
  }
  const ended = children.map((child) => once(child, 'exit'))
  killChildren()
  await Promise.all(ended)
  assert.ok(children.every(({ pid }) => !alive(pid!)))
})
