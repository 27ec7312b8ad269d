// State of set-up: one stamp per step, with a hash of everything that its result depends on.
import { createHash } from 'node:crypto'
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { fileURLToPath } from 'node:url'

export const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../..')

/** A path inside `.local`, where set-up installs everything but node_modules. */
export const local = (...parts) => path.join(root, '.local', ...parts)

export const pins = JSON.parse(readFileSync(path.join(root, 'scripts/setup/pins.json'), 'utf8'))

export const fileHash = (file) =>
  createHash('sha256')
    .update(readFileSync(path.join(root, file)))
    .digest('hex')

/**
 * Runs `make` unless the stamp of `name` matches `key` and all `results` exist. The stamp is written last, so an
 * interrupted step runs again. Returns whether it ran.
 */
export async function step(name, title, key, results, { force }, make) {
  const stamp = local('stamps', name)
  const wanted = createHash('sha256').update(JSON.stringify(key)).digest('hex')
  if (
    !force &&
    existsSync(stamp) &&
    readFileSync(stamp, 'utf8') === wanted &&
    results.every((file) => existsSync(file))
  )
    return false
  const started = Date.now()
  console.log(`• ${title}`)
  rmSync(stamp, { force: true })
  await make()
  mkdirSync(path.dirname(stamp), { recursive: true })
  writeFileSync(stamp, wanted)
  console.log(`  done in ${((Date.now() - started) / 1000).toFixed(1)} s`)
  return true
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
      if (!announced)
        console.log(`Another set-up (process ${owner || 'just starting'}) is at work here; waiting for it.`)
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
