// Server-sent events, read from text that arrives in any pieces.

export class EventReader {
  private rest = "";
  private data: string[] = [];

  /** The data of every event that this piece completes. */
  push(piece: string): string[] {
    const text = this.rest + piece;
    const done: string[] = [];
    let start = 0;
    const ends = /\r\n|\n|\r/g;
    for (let end = ends.exec(text); end; end = ends.exec(text)) {
      // A carriage return at the very end may be the first half of a line end.
      if (end[0] === "\r" && ends.lastIndex === text.length) break;
      this.line(text.slice(start, end.index), done);
      start = ends.lastIndex;
    }
    this.rest = text.slice(start);
    return done;
  }

  /** What is left when the stream ends, for servers that leave out the last empty line. */
  finish(): string[] {
    const done: string[] = [];
    for (const line of [this.rest.replace(/\r$/, ""), ""]) this.line(line, done);
    this.rest = "";
    return done;
  }

  private line(line: string, done: string[]): void {
    if (line === "") {
      if (this.data.length > 0) done.push(this.data.join("\n"));
      this.data = [];
    } else if (line.startsWith("data:")) {
      this.data.push(line.slice(line[5] === " " ? 6 : 5));
    }
  }
}
