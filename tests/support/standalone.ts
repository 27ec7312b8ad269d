// Runs a stand-alone engine on a port.
import { spawn } from 'node:child_process'
import path from 'node:path'
import { root } from '../../lib/root.ts'

export interface Standalone {
  url: string
  stderr(): string
  exited: Promise<number | null>
  kill(signal: NodeJS.Signals): void
}

/** Starts the command and waits until it prints its address. */
export async function standalone(
  command: string,
  args: string[],
  { cwd = root, env = {} as NodeJS.ProcessEnv } = {},
): Promise<Standalone> {
  // scripts/test.ts sets it for trainers; a bundle refuses settings that it does not have.
  const { TUNERY_TRAINING_PRIORITY: _, ...inherited } = process.env
  const child = spawn(command, args, { cwd, env: { ...inherited, ...env }, stdio: ['ignore', 'pipe', 'pipe'] })
  let stderr = ''
  child.stderr.on('data', (data) => {
    stderr += data
  })
  const exited = new Promise<number | null>((resolve) => child.once('exit', resolve))
  const line = await new Promise<string>((resolve, reject) => {
    child.stdout.once('data', (data) => resolve(String(data)))
    child.once('error', reject)
    void exited.then((code) => reject(new Error(`It ended with ${code}: ${stderr}`)))
  })
  const { address } = JSON.parse(line) as { address: string }
  return {
    url: `http://${address.replace('0.0.0.0', '127.0.0.1')}`,
    stderr: () => stderr,
    exited,
    kill: (signal) => child.kill(signal),
  }
}

/** Starts this checkout's engine on a free port. */
export const startEngineOnPort = (args: string[], env: NodeJS.ProcessEnv = {}) =>
  standalone(
    process.execPath,
    [path.join(root, 'engine/main.ts'), '--listen', '127.0.0.1:0', '--threads', '1', ...args],
    { env },
  )
