import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmdirSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import path from 'node:path'
import SQLite from 'better-sqlite3'
import { spawnChild } from '../../lib/child-process.ts'
import { eightBitsFile, eightBitsRecord } from '../../lib/eight-bits.ts'
import { root } from '../../lib/root.ts'
import { readConfig } from '../../server/config.ts'
import { Interrupted, UsageError } from '../support/errors.ts'
import type { GlobalOptions } from '../support/options.ts'
import { show } from '../support/output.ts'
import { fetchCheckpoint } from './fetch-checkpoint.ts'
import { ollamaFile } from './ollama.ts'

/** Exit statuses of the Python program after it has printed its reason: of the base, and of this machine. */
const [explainedStatus, laterStatus] = [3, 4]

/** Adds a base model to the models folder, in the forms that the engine and the trainer read. */
export async function addModel(
  id: string,
  options: GlobalOptions & { from?: string; weights?: 'fastest' | 'original' },
): Promise<void> {
  const { from, json, weights } = options
  if (!/^[\w.-]+\/[\w.-]+$/.test(id) || id.split('/').some((part) => /^\.+$/.test(part)))
    throw new UsageError(`A model's id is OWNER/NAME; '${id}' is not.`)
  const gguf = from === undefined ? undefined : await ggufOf(from)
  if (from && !gguf && !existsSync(path.join(from, 'config.json')))
    throw new UsageError(`${from} is not a checkpoint folder: it has no config.json.`)
  const { models_dir } = readConfig(process.env)
  const folder = path.join(models_dir, id)
  if (existsSync(path.join(root, '.local/setup-pending.json')))
    throw new UsageError(
      'What converts models is not installed yet. Wait until the service has installed it (GET /v1/hub/setup), or ' +
        'run `npm run setup`. Then try again.',
    )
  if (existsSync(path.join(folder, 'model.json'))) {
    if (weights) setWeights(folder, weights)
    const then = weights ? ` Its ${weights} weights answer from its next load on.` : ''
    return show(options, { id, folder }, `${id} is already there, in ${folder}.${then}`)
  }
  // Beside the models, and in no place where one is looked for: it has a model.json before it is complete.
  const temporary = path.join(models_dir, '.adding', id)
  const unlock = lockAdding(id, temporary)
  const interrupted = new AbortController()
  const interrupt = () => interrupted.abort()
  for (const signal of endSignals) process.once(signal, interrupt)
  try {
    if (!from) {
      await fetchCheckpoint(id, temporary, interrupted.signal)
      keepDownload(temporary)
    }
    const described = from?.startsWith(ollama) ? from : 'a GGUF file'
    const converters = path.join(root, '.local/llama/source')
    const source = from ? ['folder', '--source', path.resolve(from)] : ['hub', '--repo', id]
    const what = gguf ? ['gguf', '--source', gguf, '--from', described] : [...source, '--converters', converters]
    const args = ['-m', 'trainer.cli.add_base', ...what, '--node', process.execPath, '--id', id, '--out', temporary]
    const status = await runPython(args, json ? process.stderr : process.stdout, interrupted.signal)
    if (status !== 0) {
      // What is wrong with the files themselves is wrong the next time too.
      const isFinal = status === explainedStatus && !interrupted.signal.aborted
      const isKept = !isFinal && keepDownload(temporary)
      const kept = isKept ? 'What was downloaded is kept: the same command continues.' : ''
      if (!isKept) rmSync(temporary, { recursive: true, force: true })
      if (interrupted.signal.aborted) throw new Interrupted(kept)
      if (status !== explainedStatus && status !== laterStatus) {
        const why = status === null ? 'the program was ended, as it is where memory is not enough' : 'see above'
        throw new UsageError(`${id} could not be added: ${why}. ${kept}`.trim())
      }
      if (isKept) process.stderr.write(`${kept}\n`)
      process.exitCode = 2
      return
    }
    if (weights) setWeights(temporary, weights)
    rmSync(folder, { recursive: true, force: true })
    rmSync(path.join(temporary, 'revision'), { force: true })
    inFolder(path.dirname(folder), () => renameSync(temporary, folder))
  } finally {
    for (const signal of endSignals) process.off(signal, interrupt)
    unlock()
    for (const empty of [temporary, path.dirname(temporary), folder]) removeEmpty(path.dirname(empty))
  }
  show(options, { id, folder }, `${id} is ready, in ${folder}.`)
}

/** Removes all but a checkpoint of the hub. Returns whether there is one. */
function keepDownload(folder: string): boolean {
  const kept = ['hf', 'revision']
  const files = existsSync(folder) ? readdirSync(folder) : []
  for (const name of files) if (!kept.includes(name)) rmSync(path.join(folder, name), { recursive: true, force: true })
  return kept.every((name) => files.includes(name))
}

const endSignals = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const

/** Ends with this process, however that ends. Returns its exit status; null if it was killed. */
async function runPython(args: string[], out: NodeJS.WriteStream, signal: AbortSignal): Promise<number | null> {
  const { ended } = spawnChild(path.join(root, '.local/python/bin/python'), args, {
    env: process.env,
    signal,
    stdout: (line) => out.write(`${line}\n`),
    onStderr: (text) => process.stderr.write(text),
  })
  return (await ended).status
}

/** Two programs would write into one folder. The system itself ends the lock of a program that was killed. */
function lockAdding(id: string, folder: string): () => void {
  const file = `${folder}.lock`
  // What a lock of an earlier version left: it was no database.
  if (existsSync(file) && statSync(file).size > 0) rmSync(file)
  const lock = inFolder(path.dirname(file), () => new SQLite(file, { timeout: 0 }))
  try {
    lock.exec('begin exclusive')
  } catch (error) {
    lock.close()
    if ((error as { code?: string }).code !== 'SQLITE_BUSY') throw error
    throw new UsageError(`${id} is being added already. Wait until that has ended.`)
  }
  return () => {
    rmSync(file, { force: true })
    lock.close()
  }
}

/** Does something in a folder that it makes. Another command may remove it meanwhile, as it is empty. */
function inFolder<T>(folder: string, work: () => T): T {
  for (let left = 10; ; left--) {
    mkdirSync(folder, { recursive: true })
    try {
      return work()
    } catch (error) {
      const { code } = error as { code?: string }
      if (left === 0 || (existsSync(folder) && code !== 'SQLITE_CANTOPEN' && code !== 'ENOENT')) throw error
    }
  }
}

const ollama = 'ollama:'

/** The GGUF file that `--from` names, or that Ollama has of a model; undefined for a folder. */
async function ggufOf(from: string): Promise<string | undefined> {
  if (from.startsWith(ollama)) return await ollamaFile(from.slice(ollama.length))
  if (!existsSync(from)) throw new UsageError(`There is no ${from}.`)
  if (statSync(from).isDirectory()) return undefined
  if (!from.endsWith('.gguf')) throw new UsageError(`${from} is neither a checkpoint folder nor a GGUF file.`)
  return path.resolve(from)
}

/** Records which weights answer; the eight-bit form of a base that keeps its original is removed. */
function setWeights(folder: string, weights: 'fastest' | 'original'): void {
  const file = path.join(folder, 'model.json')
  const described = JSON.parse(readFileSync(file, 'utf8'))
  writeFileSync(
    `${file}.new`,
    `${JSON.stringify({ ...described, keep_original_weights: weights === 'original' }, null, 2)}\n`,
  )
  renameSync(`${file}.new`, file)
  if (weights === 'fastest') return
  const gguf = path.join(folder, described.gguf)
  for (const file of [eightBitsFile(gguf), eightBitsRecord(gguf)]) rmSync(file, { force: true })
}

/** Removes the owner's folder unless it has other models. */
function removeEmpty(folder: string): void {
  try {
    rmdirSync(folder)
  } catch (error) {
    if (!['ENOENT', 'ENOTEMPTY', 'EEXIST'].includes((error as NodeJS.ErrnoException).code!)) throw error
  }
}
