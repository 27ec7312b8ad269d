import { spawn } from 'node:child_process'
import { existsSync, mkdirSync, renameSync, rmdirSync, rmSync } from 'node:fs'
import path from 'node:path'
import { root } from '../lib/root.ts'
import { readConfig } from '../server/config.ts'
import { UsageError } from './usage.ts'

/** The exit status of a program that has said in a sentence why it failed. */
const told = 3

/** Brings a base model into the models folder, in the two forms that the engine and the trainer read. */
export async function models(id: string, from: string | undefined): Promise<void> {
  if (!/^[\w.-]+\/[\w.-]+$/.test(id) || id.split('/').some((part) => /^\.+$/.test(part)))
    throw new UsageError(`A model's id is OWNER/NAME; '${id}' is not.`)
  if (from && !existsSync(path.join(from, 'config.json')))
    throw new UsageError(`${from} is not a checkpoint folder: it has no config.json.`)
  const folder = path.join(readConfig(process.env).models_dir, id)
  if (existsSync(path.join(folder, 'model.json'))) return console.log(`${id} is already there, in ${folder}.`)
  const fresh = `${folder}.new`
  mkdirSync(path.dirname(folder), { recursive: true })
  const source = from ? ['folder', '--source', path.resolve(from)] : ['hub', '--repo', id]
  const args = [
    '-m',
    'trainer.cli.prepare_base',
    ...source,
    '--converters',
    path.join(root, '.local/llama/source'),
    '--id',
    id,
    '--out',
    fresh,
  ]
  const child = spawn(path.join(root, '.local/python/bin/python'), args, { cwd: root, stdio: 'inherit' })
  const status = await new Promise((resolve, reject) => child.on('exit', resolve).on('error', reject))
  if (status !== 0) {
    rmSync(fresh, { recursive: true, force: true })
    removeEmpty(path.dirname(folder))
    if (status !== told) throw new UsageError(`${id} could not be added; see above.`)
    process.exitCode = 2
    return
  }
  rmSync(folder, { recursive: true, force: true })
  renameSync(fresh, folder)
  console.log(`${id} is ready, in ${folder}.`)
}

/** Another model of the same owner may be on its way in, or out. */
function removeEmpty(folder: string): void {
  try {
    rmdirSync(folder)
  } catch (error) {
    if (!['ENOENT', 'ENOTEMPTY', 'EEXIST'].includes((error as NodeJS.ErrnoException).code!)) throw error
  }
}
