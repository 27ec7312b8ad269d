/**
 * A name as text that an HTTP header may have: other characters than those of ids and addresses are percent-encoded.
 */
export const headerText = (name: string) => name.toWellFormed().replace(/[^\w./:@+-]/gu, encodeURIComponent)
