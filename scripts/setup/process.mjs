// Runs the commands of set-up: shows progress on one line, and the end of the output if a command fails.
import { spawn, spawnSync } from 'node:child_process'
import { clearInPlace, print, showInPlace } from './progress.mjs'

/** Why set-up failed; `hint` says what to do. */
export class SetupError extends Error {
  constructor(message, hint = '') {
    super(message)
    this.hint = hint
  }
}

const running = new Set()

/** Kills the commands that run now. */
export function killCommands() {
  for (const child of running) child.kill('SIGKILL')
}

/**
 * Runs a command to its end. On a terminal, shows the last line of its output in place; elsewhere prints a line every
 * 20 s. Rejects with a SetupError that has the end of the output if the command fails.
 */
export function run(command, args, { cwd, env, hint, what } = {}) {
  return new Promise((resolve, reject) => {
    const child = spawn(command, args, { cwd, env: { ...process.env, ...env }, stdio: ['ignore', 'pipe', 'pipe'] })
    running.add(child)
    const started = Date.now()
    let output = ''
    let stdout = ''
    const show = (text) => {
      output = (output + text).slice(-20_000)
      const line = text
        .split(/[\r\n]+/)
        .filter((part) => part.trim())
        .at(-1)
      if (line) showInPlace(line.trim())
    }
    const timer = setInterval(() => {
      if (!process.stdout.isTTY) print(`  still at work (${Math.round((Date.now() - started) / 1000)} s)`)
    }, 20_000)
    child.stdout.on('data', (data) => {
      stdout += data
      show(String(data))
    })
    child.stderr.on('data', (data) => show(String(data)))
    const finish = (code) => {
      clearInterval(timer)
      running.delete(child)
      clearInPlace()
      if (code === 0) return resolve(stdout)
      const tail = output.trim().split('\n').slice(-12).join('\n    ')
      reject(
        new SetupError(
          `${what ?? `${command} ${args[0] ?? ''}`} failed${code === null ? '' : ` (exit status ${code})`}:\n` +
            `    ${tail}`,
          hintFor(output) ?? hint,
        ),
      )
    }
    child.on('error', (error) => {
      output += error.message
      finish(null)
    })
    child.on('close', finish)
  })
}

const unreachable = [
  /ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ETIMEDOUT|ECONNRESET|NewConnectionError/i,
  /Temporary failure in name resolution|Max retries exceeded|network/i,
]

// Most failures have one of two causes, an unreachable registry or a full disk: say so plainly.
function hintFor(output) {
  if (unreachable.some((words) => words.test(output)))
    return (
      'A package registry could not be reached. Check the network (and the proxy or mirror settings of npm and pip), ' +
      'then run the same command again; finished steps are kept.'
    )
  if (/ENOSPC|No space left/i.test(output))
    return 'The disk is full. Set-up needs about 3 GB; free some room and run the same command again.'
  return undefined
}

/** The output of a short command; undefined if it fails. */
export function ask(command, args) {
  const result = spawnSync(command, args, { encoding: 'utf8', timeout: 20_000 })
  return result.status === 0 ? result.stdout.trim() : undefined
}

/** Throws unless the program is on the PATH. */
export function need(command, hint) {
  if (ask(command, ['--version']) === undefined) throw new SetupError(`${command} was not found on this machine.`, hint)
}
