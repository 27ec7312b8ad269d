// From a name to its addresses: the hosts file, then DNS.
import { Resolver } from 'node:dns/promises'
import { readFile } from 'node:fs/promises'
import { isIP } from 'node:net'
import { loopbackOf } from './target.ts'

/** The addresses of a name; none where there is no such name. Throws where the name servers do not answer. */
export type Resolve = (name: string, signal: AbortSignal) => Promise<string[]>

const hostsFile = process.platform === 'win32' ? `${process.env.SystemRoot}\\System32\\drivers\\etc\\hosts` : '/etc/hosts'

// The system's own look-up holds one of four threads for as long as a name server keeps it waiting; these are everybody's, so four
// slow names would stop the reading and writing of files. This one holds nothing and can be given up.
export const resolve: Resolve = async (name, signal) => {
  const known = loopbackOf(name) ?? (await inHostsFile(name))
  if (known.length > 0) return known
  const resolver = new Resolver({ timeout: 3000, tries: 2 })
  const giveUp = () => resolver.cancel()
  signal.addEventListener('abort', giveUp, { once: true })
  try {
    signal.throwIfAborted()
    const [four, six] = await Promise.allSettled([resolver.resolve4(name), resolver.resolve6(name)])
    const found = [four, six].flatMap((each) => (each.status === 'fulfilled' ? each.value : []))
    const failed = [four, six].find((each) => each.status === 'rejected' && !['ENODATA', 'ENOTFOUND'].includes(each.reason.code))
    if (found.length === 0 && failed) throw (failed as PromiseRejectedResult).reason
    return found
  } finally {
    signal.removeEventListener('abort', giveUp)
  }
}

async function inHostsFile(name: string): Promise<string[]> {
  const text = await readFile(hostsFile, 'utf8').catch(() => '')
  return text.split('\n').flatMap((line) => {
    const [address = '', ...names] = line.replace(/#.*/, '').trim().split(/\s+/)
    return isIP(address) && names.some((each) => each.toLowerCase() === name) ? [address] : []
  })
}
