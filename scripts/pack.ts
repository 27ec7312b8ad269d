// Makes a package of a folder: bundled by tsdown, packed by npm.
import { execFileSync } from 'node:child_process'
import { cpSync, mkdtempSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { build, type InlineConfig } from 'tsdown'
import { root } from '../lib/root.ts'

interface Packing {
  /** In the checkout, with package.json and README.md. */
  folder: string
  /** Gets the tarball. */
  target: string
  build: InlineConfig
}

/** Packs a folder of the checkout, and prints where the tarball is. */
export async function pack({ folder, target, build: options }: Packing): Promise<void> {
  const source = path.join(root, folder)
  const temporary = mkdtempSync(path.join(os.tmpdir(), 'tunery-pack-'))
  try {
    await build({
      cwd: source,
      config: false,
      outDir: path.join(temporary, 'dist'),
      fixedExtension: false,
      logLevel: 'error',
      ...options,
    })
    for (const name of ['package.json', 'README.md']) cpSync(path.join(source, name), path.join(temporary, name))
    cpSync(path.join(root, 'LICENSE'), path.join(temporary, 'LICENSE'))
    const packed = execFileSync('npm', ['pack', '--pack-destination', target, '--json'], {
      cwd: temporary,
      encoding: 'utf8',
    })
    console.log(path.join(target, (JSON.parse(packed) as { filename: string }[])[0]!.filename))
  } finally {
    rmSync(temporary, { recursive: true, force: true })
  }
}
