// Runs `./tunery` as a process, as its users do.
import { spawn } from 'node:child_process'
import path from 'node:path'
import { root } from '../../lib/root.ts'

export interface CliResult {
  status: number | null
  stdout: string
  stderr: string
  /** The JSON of stdout. */
  json: () => ReturnType<typeof JSON.parse>
}

export interface CliOptions {
  env?: Record<string, string>
  input?: string
  command?: string
}

/** The environment of a user who has set nothing. `home`: where profiles are. */
export const cliEnv = (home: string): NodeJS.ProcessEnv => ({
  ...Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith('TUNERY_'))),
  XDG_CONFIG_HOME: home,
  NO_COLOR: '1',
})

/** Starts it; stdout and stderr are read while it runs. */
export function startCli(env: NodeJS.ProcessEnv, words: string[], { input = '', command }: CliOptions = {}) {
  const child = spawn(command ?? path.join(root, 'tunery'), words, { env, stdio: 'pipe' })
  let [stdout, stderr] = ['', '']
  child.stdout.setEncoding('utf8').on('data', (text) => (stdout += text))
  child.stderr.setEncoding('utf8').on('data', (text) => (stderr += text))
  child.stdin.on('error', () => {}).end(input)
  return {
    child,
    stdout: () => stdout,
    stderr: () => stderr,
    ended: new Promise<CliResult>((resolve) =>
      child.once('close', (status) => resolve({ status, stdout, stderr, json: () => JSON.parse(stdout) })),
    ),
  }
}
