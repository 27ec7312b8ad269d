// What is wrong with a row.

/**
 * A code and a message that continues a sentence about the row ("line 3 …"). A message that is a full sentence begins
 * with a colon.
 */
export type Problem = [code: string, message: string]

export const isProblem = (read: unknown): read is Problem => Array.isArray(read) && typeof read[0] === 'string'
