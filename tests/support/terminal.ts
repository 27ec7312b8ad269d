import { spawn } from 'node:child_process'
import path from 'node:path'
import { root } from '../../lib/root.ts'

export interface Terminal {
  /** All output so far. */
  shown(): string
  press(key: 'C-c' | 'C-d'): void
  /** Types a line, with Enter at its end. */
  type(line: string): void
  /** Closes the terminal, as a lost connection does. */
  close(): void
  /** The program's exit status as a shell reports it. */
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
  // Ignore keys that are pressed after the end.
  child.stdin.on('error', () => {})
  let shown = ''
  child.stdout.setEncoding('utf8').on('data', (text) => (shown += text))
  return {
    shown: () => shown,
    press: (key) => child.stdin.write(`press ${key}\n`),
    type: (line) => child.stdin.write(`type ${line}\n`),
    close: () => child.stdin.write('close\n'),
    ended: new Promise((resolve) =>
      child.stdout.once('end', () => resolve(Number(/exit (\d+)\s*$/.exec(shown)?.[1] ?? -1))),
    ),
  }
}
