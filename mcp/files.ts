// Files of this machine that a local client may upload: data files in folders that the user has named.
import { openAsBlob, realpathSync, statSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { ToolError } from './errors.ts'

const endings = ['.jsonl', '.json', '.csv', '.parquet', '.zip']

/**
 * Reads files below these folders, links followed. An assistant can be talked into reading what it should not: hidden
 * files and other kinds of files are refused.
 */
export function createFileReader(folders: string[]): (file: string) => Promise<File> {
  const roots = folders.map((folder) => realpathSync(folder))
  return async (requested) => {
    const refuse = (why: string): never => {
      throw new ToolError('path_refused', `'${requested}' is not uploaded: ${why}`)
    }
    if (roots.length === 0) refuse('no folder is open to this server. The user starts it with --folder DIR.')
    let file: string
    try {
      file = realpathSync(path.resolve(roots[0]!, requested))
    } catch {
      return refuse('there is no such file.')
    }
    const inside = roots
      .map((root) => path.relative(root, file))
      .find((relative) => !relative.startsWith('..') && !path.isAbsolute(relative))
    if (inside === undefined)
      return refuse(`it is not in ${roots.join(' or ')}. The user opens folders with --folder DIR.`)
    if (inside.split(path.sep).some((part) => part.startsWith('.'))) refuse('it is hidden.')
    if (!endings.includes(path.extname(file).toLowerCase())) refuse(`it must end in ${endings.join(', ')}.`)
    if (!statSync(file).isFile()) refuse('it is not a file.')
    return new File([await openAsBlob(file)], path.basename(file))
  }
}

/** The folders that are open when none is named: the one it was started in, unless that is as good as everything. */
export function defaultFolders(): string[] {
  const here = process.cwd()
  const all = [path.parse(here).root, os.homedir(), path.dirname(os.homedir())]
  return all.includes(here) ? [] : [here]
}
