// The engine's own kernels (engine/kernels), where there is a C++ compiler: without them it computes with the library's.
import { existsSync, mkdirSync, readdirSync, renameSync, rmSync } from 'node:fs'
import path from 'node:path'
import { ask, run } from './process.mjs'
import { print } from './progress.mjs'
import { fileHash, local, root, step } from './state.mjs'

const folder = 'engine/kernels'
const file = () => local('llama/lib/libtunery-kernels.so')
/** What the kernels need of a processor; they ask for it before they are used. */
const features = ['avx512f', 'avx512bw', 'avx512dq', 'avx512vl', 'avx512vnni', 'fma', 'f16c']
const flags = [
  ...['-O3', '-std=c++17', '-fPIC', '-shared', '-fvisibility=hidden'],
  // The library calls them to its end, also when nobody here refers to their file any more.
  '-Wl,-z,nodelete',
  ...features.map((name) => `-m${name}`),
]

/** Two seconds of one core. A compiler that fails is no reason to do without an engine. */
export async function kernels(options) {
  if (process.arch !== 'x64' || !existsSync(path.join(root, folder)) || ask('g++', ['--version']) === undefined)
    return false
  const sources = readdirSync(path.join(root, folder))
    .sort()
    .map((name) => `${folder}/${name}`)
  return step('kernels', "the engine's kernels", [flags, sources.map(fileHash)], [file()], options, async () => {
    const fresh = `${file()}.new`
    mkdirSync(path.dirname(fresh), { recursive: true })
    try {
      // The names of ggml that they use are found in the library, which the engine opens before them.
      await run('g++', [...flags, '-o', fresh, ...sources.filter((name) => name.endsWith('.cpp'))], {
        cwd: root,
        what: 'compiling the kernels',
      })
      // An engine that runs keeps the old file.
      renameSync(fresh, file())
    } catch (error) {
      rmSync(file(), { force: true })
      print(`  The engine computes with its library's kernels: ${error.message}`)
    }
  })
}
