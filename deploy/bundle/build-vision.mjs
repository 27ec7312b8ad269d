// Compiles the engine's library for pictures from the source in this folder, for the libraries that `npm ci` installed.
// Needs g++; takes a minute of one core. Built-in modules only.
import { spawn, spawnSync } from 'node:child_process'
import { existsSync, readdirSync, rmSync } from 'node:fs'
import path from 'node:path'
import { fileURLToPath } from 'node:url'
import { compileVision } from './compile-vision.mjs'

const here = path.dirname(fileURLToPath(import.meta.url))
const fail = (message) => {
  console.error(message)
  process.exit(1)
}

if (spawnSync('g++', ['--version'], { stdio: 'ignore' }).status !== 0)
  fail('This needs the compiler g++. Install it (Debian and Ubuntu: `apt-get install g++`), or build the image.')
const packages = path.join(here, '../node_modules/@node-llama-cpp')
const libraries = (existsSync(packages) ? readdirSync(packages) : [])
  .map((name) => path.join(packages, name, 'bins', name))
  .filter((folder) => existsSync(folder) && readdirSync(folder).some((name) => /^libllama\b.*\.so$/.test(name)))
if (libraries.length === 0) fail("The engine's libraries are missing. Run 'npm ci --omit=dev --ignore-scripts' first.")

const run = (program, args, { cwd, what }) =>
  new Promise((resolve, reject) => {
    const child = spawn(program, args, { cwd, stdio: ['ignore', 'inherit', 'inherit'] })
    child.once('error', reject)
    child.once('exit', (status) => (status === 0 ? resolve() : reject(new Error(`${what} failed (${status})`))))
  })
const objects = path.join(here, 'objects')
try {
  await compileVision({ source: path.join(here, 'source'), objects, libraries, run })
} catch (error) {
  fail(error.message)
} finally {
  if (existsSync(objects)) rmSync(objects, { recursive: true })
}
console.log(
  `The library for pictures is built: ${libraries.map((folder) => path.join(folder, 'libmtmd.so')).join(', ')}`,
)
