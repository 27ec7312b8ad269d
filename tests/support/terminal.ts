import { spawn } from 'node:child_process'
import path from 'node:path'
import { root } from '../../lib/root.ts'

export interface Terminal {
  /** Everything that was shown so far. */
  shown(): string
  press(key: 'C-c'): void
  /** Closes the terminal, as a lost connection does. */
  close(): void
  /** The exit status of what was started, as a shell tells it. */
  ended: Promise<number>
}

/** Runs a program in a pseudo-terminal, from the root of the checkout. */
export function openTerminal(env: NodeJS.ProcessEnv, command: string, ...args: string[]): Terminal {
  const python = path.join(root, '.local/python/bin/python')
  const child = spawn(python, [path.join(import.meta.dirname, 'terminal.py'), command, ...args], {
    cwd: root,
    env,
    stdio: ['pipe', 'pipe', 'inherit'],
  })
  // A key that is pressed when all is over goes nowhere.
  child.stdin.on('error', () => {})
  let shown = ''
  child.stdout.setEncoding('utf8').on('data', (text) => (shown += text))
  return {
    shown: () => shown,
    press: (key) => child.stdin.write(`press ${key}\n`),
    close: () => child.stdin.write('close\n'),
    ended: new Promise((resolve) =>
      child.stdout.once('end', () => resolve(Number(/exit (\d+)\s*$/.exec(shown)?.[1] ?? -1))),
    ),
  }
}
