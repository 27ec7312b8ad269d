// Checks the types of the trainer with pyright (`[tool.pyright]` of pyproject.toml). What has not changed since the
// last check that passed is not checked again: reading torch takes most of the time.
import { spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync, globSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import path from 'node:path'

const root = path.resolve(import.meta.dirname, '..')
const program = path.join(root, 'node_modules/pyright/index.js')

if (!existsSync(program)) {
  // A checkout that was set up before pyright came can still run the other checks. CI sets up from scratch.
  console.log(
    'Not checked: pyright is not installed. Run `npm ci --ignore-scripts`, which installs what package-lock.json ' +
      'lists.',
  )
  process.exit(process.env.CI ? 1 : 0)
}

const hash = createHash('sha256')
const files = globSync(['trainer/**/*.{py,pyi}', 'trainer/*.txt', 'pyproject.toml', 'package-lock.json'], { cwd: root })
for (const file of files.sort()) hash.update(`${file}\0`).update(readFileSync(path.join(root, file)))
const key = hash.digest('hex')
const passed = path.join(root, 'node_modules/.cache/pyright/passed')
if (existsSync(passed) && readFileSync(passed, 'utf8') === key) process.exit(0)

const python = path.join(root, '.local/python/bin/python')
const { status } = spawnSync(process.execPath, [program, '--pythonpath', python], { cwd: root, stdio: 'inherit' })
if (status === 0) {
  mkdirSync(path.dirname(passed), { recursive: true })
  writeFileSync(passed, key)
}
process.exit(status ?? 1)
