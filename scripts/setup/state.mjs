// State of set-up: one stamp per step, with a hash of everything that its result depends on.
import { createHash } from 'node:crypto'
import { existsSync, mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { fileURLToPath } from 'node:url'
import { print, report } from './progress.mjs'

export const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../..')

/** A path inside `.local`, where set-up installs everything but node_modules. */
export const local = (...parts) => path.join(root, '.local', ...parts)

export const pins = JSON.parse(readFileSync(path.join(root, 'scripts/setup/pins.json'), 'utf8'))

export const fileHash = (file) =>
  createHash('sha256')
    .update(readFileSync(path.join(root, file)))
    .digest('hex')

const hashOf = (key) => createHash('sha256').update(JSON.stringify(key)).digest('hex')

/** Whether the stamp of a step matches `key` and all its `results` exist. */
export function isDone(name, key, results) {
  const stamp = local('stamps', name)
  return existsSync(stamp) && readFileSync(stamp, 'utf8') === hashOf(key) && results.every((file) => existsSync(file))
}

/**
 * Runs `make` unless the step is done. The stamp is written last, so an interrupted step runs again. Returns whether it
 * ran. With `plan`, an array, it runs nothing and adds what it would run.
 */
export async function step(name, title, key, results, { force, plan }, make) {
  if (!force && isDone(name, key, results)) return false
  if (plan) {
    plan.push({ name, title })
    return false
  }
  const started = Date.now()
  print(`• ${title}`)
  report({ name, title, status: 'running' })
  const stamp = local('stamps', name)
  rmSync(stamp, { force: true })
  try {
    await make()
  } catch (error) {
    report({ name, title, status: 'failed', message: error.message, hint: error.hint })
    throw error
  }
  mkdirSync(path.dirname(stamp), { recursive: true })
  writeFileSync(stamp, hashOf(key))
  print(`  ${name} done in ${((Date.now() - started) / 1000).toFixed(1)} s`)
  report({ name, title, status: 'done' })
  return true
}

/**
 * Remembers the steps that training still needs, for the server, which runs them behind its own start
 * (server/platform/setup/service.ts). Without any there is no file.
 */
export function writePending(steps) {
  const file = local('setup-pending.json')
  if (steps.length === 0) return rmSync(file, { force: true })
  writeFileSync(`${file}.new`, `${JSON.stringify(steps, null, 2)}\n`)
  renameSync(`${file}.new`, file)
}

/** Whether another set-up of this checkout is at work. */
export function isLocked() {
  const owner = Number(readText(local('setup.lock')))
  return owner > 0 && alive(owner)
}

/** Runs one set-up at a time per checkout: others wait. Takes over the lock of a process that has died. */
export async function withLock(work) {
  const file = local('setup.lock')
  let announced = false
  for (;;) {
    try {
      writeFileSync(file, String(process.pid), { flag: 'wx' })
      break
    } catch (error) {
      if (error.code !== 'EEXIST') throw error
      const owner = Number(readText(file))
      if (owner > 0 && !alive(owner)) {
        rmSync(file, { force: true })
        continue
      }
      if (!announced) announce(`Another set-up (process ${owner || 'just starting'}) is at work here; waiting for it.`)
      announced = true
      await new Promise((resolve) => setTimeout(resolve, 300))
    }
  }
  try {
    return await work()
  } finally {
    rmSync(file, { force: true })
  }
}

function announce(text) {
  print(text)
  report({ message: text })
}

function readText(file) {
  try {
    return readFileSync(file, 'utf8')
  } catch {
    return ''
  }
}

function alive(pid) {
  try {
    process.kill(pid, 0)
    return true
  } catch (error) {
    return error.code === 'EPERM'
  }
}
