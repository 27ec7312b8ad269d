// How the C library's memory goes back to the system.
import koffi from 'koffi'

// Of glibc's <malloc.h>.
const mmapThreshold = -3
const blockBytes = 1024 * 1024

/**
 * Gives blocks of a megabyte and more back as soon as they are freed. glibc raises that bound by itself to what was freed last, up to 32 MB,
 * and keeps contexts that were given up: with hundreds of adapters in turn, the memory of the process grew to several times what is in use.
 * Does nothing where the C library is another.
 */
export function returnLargeBlocks(): void {
  if (process.platform !== 'linux') return
  try {
    koffi.load('libc.so.6').func('int mallopt(int parameter, int value)')(mmapThreshold, blockBytes)
  } catch {
    // Not glibc: others give large blocks back anyway.
  }
}
