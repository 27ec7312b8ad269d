// The key that opens the search, in the dashboard and in the docs.
const isApple = /Mac|iP(hone|ad)/.test(navigator.platform)

/** As the keyboard of this machine names it. */
export const searchKey = isApple ? '⌘K' : 'Ctrl K'

export const isSearchKey = ({ key, ctrlKey, metaKey }: KeyboardEvent): boolean =>
  key.toLowerCase() === 'k' && (ctrlKey || metaKey)
