// Compiles libmtmd from its corrected source and links it with llama.cpp's libraries. Set-up uses it, and bundles have
// a copy: built-in modules only.
import { mkdirSync, readdirSync, renameSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'

/** The parts of `tools/mtmd` that are compiled or included, as are the headers of llama.cpp and ggml. */
export const isSource = (name) =>
  /\.(h|hpp)$/.test(name) || (/\.cpp$/.test(name) && !/^mtmd-(cli|helper|debug)/.test(path.basename(name)))

/**
 * `source`: the root of llama.cpp's source. `objects`: a folder that is made. `libraries`: folders with libllama, each
 * of which gets libmtmd.so. `run(program, args, options)` runs a program to its end, and rejects if it fails.
 */
export async function compileVision({ source, objects, libraries, run }) {
  mkdirSync(objects, { recursive: true })
  const mtmd = path.join(source, 'tools/mtmd')
  // Without the helper and the command line: they decode files of pictures and sounds, which the engine does not let
  // a library in C do.
  const files = [
    ...['mtmd.cpp', 'mtmd-audio.cpp', 'mtmd-image.cpp', 'clip.cpp', 'bf16.cpp'],
    ...readdirSync(path.join(mtmd, 'models'))
      .filter((name) => name.endsWith('.cpp'))
      .map((name) => `models/${name}`),
  ]
  const includes = ['.', '../../include', '../../ggml/include'].flatMap((folder) => ['-I', folder])
  const defines = ['LLAMA_BUILD', 'LLAMA_SHARED', 'GGML_SHARED', 'GGML_BACKEND_SHARED'].map((name) => `-D${name}`)
  const flags = ['-O2', '-fPIC', '-std=c++17', '-fvisibility=hidden', ...defines, ...includes]
  const waiting = files.toReversed()
  const compileRest = async () => {
    for (let name = waiting.pop(); name !== undefined; name = waiting.pop()) {
      const object = path.join(objects, `${name.replaceAll('/', '_')}.o`)
      await run('g++', [...flags, '-c', name, '-o', object], { cwd: mtmd, what: `compiling ${name}` })
    }
  }
  await Promise.all(Array.from({ length: os.availableParallelism() }, compileRest))
  const inputs = readdirSync(objects)
    .filter((name) => name.endsWith('.o'))
    .map((name) => path.join(objects, name))
  for (const library of libraries) {
    const linked = ['llama', 'ggml', 'ggml-base'].map((name) => path.join(library, libraryFile(library, name)))
    // An engine that runs keeps the old file.
    const fresh = path.join(library, 'libmtmd.so.new')
    await run('g++', ['-shared', '-o', fresh, ...inputs, ...linked, '-Wl,-rpath,$ORIGIN', '-Wl,--no-undefined'], {
      what: 'linking libmtmd',
    })
    rmSync(path.join(library, 'libmtmd.so'), { force: true })
    renameSync(fresh, path.join(library, 'libmtmd.so'))
  }
}

/**
 * The file of a library that engine/llama/library.ts opens: of a CPU and a GPU build, the one with the shorter name.
 */
export function libraryFile(folder, name) {
  const pattern = new RegExp(`^lib${name}(\\.cuda)?(\\.v?[0-9.]+)?\\.so$`)
  const [found] = readdirSync(folder)
    .filter((each) => pattern.test(each))
    .sort((one, other) => one.length - other.length)
  if (!found) throw new Error(`lib${name}.so is missing in ${folder}.`)
  return found
}
