// What the build of the docs and their search in the browser must agree on.

/** A section that was found. Its id is the address below `/docs/`. */
export interface Found {
  id: string
  /** The page's title. */
  page: string
  /** Empty for the beginning of a page. */
  heading: string
  excerpt: string
}

/** Guides answer most questions; how it was built, and when, answers few. */
const weightOf = (id: string) =>
  // Who types the name of a setting wants its definition.
  id.startsWith('reference/job-config')
    ? 3
    : id.startsWith('guides/')
      ? 1.5
      : /^(decisions\/|changelog|architecture|server$|engine$|web$|glossary|contributing)/.test(id)
        ? 0.5
        : 1

export const searchOptions = {
  fields: ['title', 'heading', 'text'],
  storeFields: ['page', 'heading', 'excerpt'],
  // A name such as `TUNERY_PORT` or `training_config.epochs` is found whole and by its parts.
  tokenize: (text: string) => {
    const words = text.split(/[^\p{L}\p{N}_.-]+/u).map((word) => word.replace(/^[.\-_]+|(?<![.\-_])[.\-_]+$/g, ''))
    return words.flatMap((word) => (/[._-]/.test(word) ? [word, ...word.split(/[._-]+/)] : [word])).filter(Boolean)
  },
  searchOptions: {
    prefix: true,
    fuzzy: 0.15,
    boost: { title: 4, heading: 3 },
    boostDocument: (id: string) => weightOf(id),
    combineWith: 'AND' as const,
  },
}
